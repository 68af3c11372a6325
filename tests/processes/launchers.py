"""Start a script of `examples/` on two machines, kill one of them, see what it said.

Or start it on one, where it must run, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from d2lmulti.processes.spawn import environment, free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST = 400.0  # seconds to wait for anything
TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes {nodes} --nproc-per-node 1 "
    "--node-rank {rank} --master-addr {addresses[0]} --master-port {port} {script}"
)
ELASTIC = (
    "{python} -m torch.distributed.run --nnodes 1:2 --nproc-per-node 1 "
    "--max-restarts 3 --local-addr {addresses[1]} --rdzv-backend c10d "
    "--rdzv-endpoint {addresses[0]}:{port} --rdzv-id job "
    "--rdzv-conf is_host={is_first},last_call_timeout=2 {script}"
)
LAUNCHERS = {
    "pytorch_ddp": TORCHRUN,
    "pytorch_fsdp": TORCHRUN,
    "paddle_parallel": (
        "{python} -m paddle.distributed.launch --nnodes {nodes} --nproc_per_node 1 "
        "--rank {rank} --master {addresses[0]}:{port} --host {addresses[1]} "
        "--log_dir {port} {script}"
    ),
    "tensorflow_workers": "{python} {script}",
    "mxnet_horovod": (  # one launcher, which reaches the other machine by ssh
        "{folder}/horovodrun --gloo --network-interfaces {interface} -np {nodes} "
        "-H {hosts} {python} {script}"
    ),
}
# An `ssh` of our own: where no server listens, it enters the other network namespace.
SSH = """#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
case $1 in
{}
esac
shift
while [[ $1 == -o ]]; do shift 2; done
exec "${{there[@]}}" bash -c "$*"
"""


class Launchers:
    """One run of a script: a launcher on each machine, or the one that it needs."""

    def __init__(
        self, name: str, machines: list[Any], folder: Path, arguments: list[str],
        launcher: str = "",
    ) -> None:  # fmt: skip
        self.port, self.script = (port := free_port()), str(EXAMPLES / f"{name}.py")
        self.running: list[subprocess.Popen[str]] = []
        self.machines, launcher = machines, launcher or LAUNCHERS[name]
        self.folders = [folder / f"machine {rank}" for rank in range(len(machines))]
        several, slots = len(machines) > 1, Counter(m.address for m in machines)
        if "horovodrun" in launcher:  # it works everywhere in a folder of one name
            self.folders = self.folders[:1] * len(machines)
            write_ssh(folder / "ssh", machines)
        for rank, machine in enumerate(machines[: len({*self.folders})]):
            self.folders[rank].mkdir(exist_ok=True)
            command = launcher.format(
                python=sys.executable, folder=Path(sys.executable).parent, rank=rank,
                addresses=[machines[0].address, machine.address], port=port,
                is_first=int(rank == 0), nodes=len(machines), script=self.script,
                hosts=",".join(f"{address}:{n}" for address, n in slots.items()),
                interface="cable0" if several and machine.prefix else "lo",
            )  # fmt: skip
            workers = [f"{m.address}:{port + i}" for i, m in enumerate(machines)]
            task = {"type": "worker", "index": rank}
            config = json.dumps({"cluster": {"worker": workers}, "task": task})
            extra = {"PATH": f"{folder}:{os.environ['PATH']}"}
            if several and name == "tensorflow_workers":
                extra |= {"TF_CONFIG": config}
            with (self.folders[rank] / f"said {port}").open("w") as said:
                process = subprocess.Popen(
                    [*machine.prefix, *command.split(), *arguments],
                    env=environment() | machine.environment | extra,
                    cwd=self.folders[rank], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self.running.append(process)

    def said(self, which: int = 0) -> str:
        """What a machine has said, that of rank 0; Paddle's launcher shows it late."""
        files = f"said {self.port}", f"{self.port}/workerlog.0"
        texts = [self.folders[which] / file for file in files]
        return "".join(text.read_text() for text in texts[::-1] if text.exists())

    def epochs(self) -> list[int]:
        """The epochs that were reported, each once."""
        found = re.findall(r"epoch (\d+): loss", self.said())
        return sorted({int(epoch) for epoch in found})

    def wait_until(self, done: Callable[[], object]) -> None:
        """Wait while the first machine's launcher runs, and not for ever."""
        until = time.monotonic() + MOST
        while not done():
            assert self.running[0].poll() is None, self.said()[-2000:]
            assert time.monotonic() < until, self.said()[-2000:]
            time.sleep(0.05)

    def processes(self, which: int) -> dict[int, list[str]]:
        """The processes of a machine that run, and their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                here = (folder / "cwd").samefile(self.folders[which])
                if here and self.machines[which].has(int(folder.name)):
                    command = (folder / "cmdline").read_text().split("\0")
                    found[int(folder.name)] = command
        return found

    def kill(self, which: int, what: str = "machine") -> None:
        """Kill a machine: the launcher, and the workers, which leave its session.

        Or of it the "launcher" alone, or its last "worker".
        """
        found = self.processes(which)
        if what == "launcher":
            launcher = self.running[which].pid
            found = {launcher: found[launcher]}
        elif what == "worker":  # python [-u] script
            works = [p for p, words in found.items() if self.script in words[1:3]]
            found = {works[-1]: found[works[-1]]}
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def seconds_to_end(self, most: float) -> float | None:
        """How long until all that was started has ended by itself; None: it did not."""
        began = time.monotonic()
        while any(map(self.processes, range(len(self.folders)))):
            if time.monotonic() > began + most:
                return None
            time.sleep(0.1)
        return time.monotonic() - began

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, as whoever starts a run again would."""
        for which in range(len(self.machines)):
            self.kill(which)
        for process in self.running:
            process.wait()


def write_ssh(path: Path, machines: list[Any]) -> None:
    """Write an `ssh` that carries a command out on one of the machines."""
    there = [f"{m.address}) there=({shlex.join(m.prefix)});;" for m in machines]
    path.write_text(SSH.format("\n".join(there)))
    path.chmod(stat.S_IRWXU)
