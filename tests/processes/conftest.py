"""`staying`: processes that many tests ask. `machines`: two to start launchers on.

With the right to make network namespaces, the machines are two of those, joined by a
cable of their own; else both are this machine. `named` ones have names that differ.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from processes.staying import Staying


class Machine(NamedTuple):
    """Its address, how to run a command there, what to set, and its bytes received."""

    address: str
    prefix: list[str]
    environment: dict[str, str]
    received: Callable[[], int]

    def has(self, pid: int) -> bool:
        """Whether a process runs there: in its network namespace."""
        if not self.prefix:
            return True
        name = self.prefix[self.prefix.index("exec") + 1]
        return Path(f"/proc/{pid}/ns/net").samefile(f"/run/netns/{name}")


# Two machines played on one computer would share its GPUs, which NCCL refuses. Paddle's
# launcher takes the empty list for one GPU, so its backend is named as well.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "PADDLE_DISTRI_BACKEND": "gloo"}
THIS = Machine("127.0.0.1", [], NO_GPU, lambda: 0)
# Run a command where the machine has another name: unshare --uts python -c NAME ...
NAME = "import os, socket, sys; socket.sethostname(sys.argv[1]); "
NAME += "os.execvp(sys.argv[2], sys.argv[2:])"


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture(scope="session")
def staying() -> Iterator[Staying]:
    found = Staying()
    yield found
    found.end()


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    names = [f"d2l{os.getpid()}{end}" for end in "ab"]
    first = ("netns", "add", names[0])
    if shutil.which("ip") is None or ip(*first, check=False).returncode:
        yield [THIS] * 2
        return
    found = []
    try:
        ip("netns", "add", names[1])
        ip("link", "add", "cable0", "netns", names[0], "type", "veth",
           "peer", "name", "cable0", "netns", names[1])  # fmt: skip
        for i, name in enumerate(names):
            address, inside = f"10.77.0.{i + 1}", ["netns", "exec", name]
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable0")
            for device in ("lo", "cable0"):
                ip("-n", name, "link", "set", device, "up")

            def received(inside: list[str] = inside) -> int:
                counter = "/sys/class/net/cable0/statistics/rx_bytes"
                return int(ip(*inside, "cat", counter).stdout)

            cable = NO_GPU | {"GLOO_SOCKET_IFNAME": "cable0"}
            found.append(Machine(address, ["ip", *inside], cable, received))
        yield found
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


@pytest.fixture(scope="module")
def named(machines: list[Machine]) -> list[Machine]:
    """Machines whose name is their address, or, without the right to that, this one."""
    found = []
    for machine in machines:
        name = ["unshare", "--uts", sys.executable, "-c", NAME, machine.address]
        prefix = [*machine.prefix, *name]
        if not machine.prefix or subprocess.run([*prefix, "true"]).returncode:
            return [THIS] * 2
        found.append(machine._replace(prefix=prefix))
    return found
