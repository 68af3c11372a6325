"""Start a script of `examples/` on two machines, kill one of them, see what it said.

Or start it on one, where it must run, too.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from d2lmulti.launch.processes import environment, free_port

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
    "--rdzv-conf is_host={is_first},last_call_timeout=5 {script}"
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
    # Horovod reaches other machines by ssh; both processes are on this one.
    "mxnet_horovod": "{folder}/horovodrun --gloo -np {nodes} {python} {script}",
}


class Launchers:
    """One run of a script: a launcher on each machine, or the one that it needs."""

    def __init__(
        self, name: str, machines: list[Any], folder: Path, arguments: list[str],
        launcher: str = "",
    ) -> None:  # fmt: skip
        self.port, self.script = (port := free_port()), str(EXAMPLES / f"{name}.py")
        ours = machines if name != "mxnet_horovod" else machines[:1]
        self.running: list[subprocess.Popen[str]] = []
        self.folders = [folder / f"machine {rank}" for rank in range(len(ours))]
        for rank, machine in enumerate(ours):
            self.folders[rank].mkdir(exist_ok=True)
            command = (launcher or LAUNCHERS[name]).format(
                python=sys.executable, folder=Path(sys.executable).parent, rank=rank,
                addresses=[machines[0].address, machine.address], port=port,
                is_first=int(rank == 0), nodes=len(machines), script=self.script,
            )  # fmt: skip
            workers = [f"{m.address}:{port + i}" for i, m in enumerate(machines)]
            task = {"type": "worker", "index": rank}
            config = json.dumps({"cluster": {"worker": workers}, "task": task})
            several = name == "tensorflow_workers" and len(machines) > 1
            extra = {"TF_CONFIG": config} if several else {}
            prefix = machine.prefix if name != "mxnet_horovod" else []
            with (self.folders[rank] / f"said {port}").open("w") as said:
                process = subprocess.Popen(
                    [*prefix, *command.split(), *arguments],
                    env=environment() | machine.environment | extra,
                    cwd=self.folders[rank], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self.running.append(process)

    def said(self) -> str:
        """What the machine of rank 0 has said; Paddle's launcher shows its log late."""
        files = f"said {self.port}", f"{self.port}/workerlog.0"
        texts = [self.folders[0] / file for file in files]
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
                if (folder / "cwd").samefile(self.folders[which]):
                    command = (folder / "cmdline").read_text().split("\0")
                    found[int(folder.name)] = command
        return found

    def kill(self, which: int, what: str = "machine") -> None:
        """Kill a machine: the launcher, and the workers, which leave its session.

        Or of it the "launcher" alone, or its last "worker".
        """
        found, launcher = self.processes(which), self.running[which].pid
        if what == "launcher":
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
        for which, process in enumerate(self.running):
            self.kill(which)
            process.wait()
