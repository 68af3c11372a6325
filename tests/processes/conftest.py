"""`machines`: two machines to start launchers on, or what comes nearest to them here.

With the right to make network namespaces, the machines are two of those, joined by a
cable of their own; else both are this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest


class Machine(NamedTuple):
    """Its address, how to run a command there, what to set, and its bytes received."""

    address: str
    prefix: list[str]
    environment: dict[str, str]
    received: Callable[[], int]


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    names = [f"d2l{os.getpid()}{end}" for end in "ab"]
    first = ("netns", "add", names[0])
    if shutil.which("ip") is None or ip(*first, check=False).returncode:
        yield [Machine("127.0.0.1", [], {}, lambda: 0)] * 2
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

            cable = {"GLOO_SOCKET_IFNAME": "cable0"}
            found.append(Machine(address, ["ip", *inside], cable, received))
        yield found
    finally:
        for name in names:
            ip("netns", "del", name, check=False)
