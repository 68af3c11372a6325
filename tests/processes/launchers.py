"""Start a script of `examples/` on two machines, kill one of them, see what it said."""

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
    "{python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 "
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
        "{python} -m paddle.distributed.launch --nnodes 2 --nproc_per_node 1 "
        "--rank {rank} --master {addresses[0]}:{port} --host {addresses[1]} "
        "--log_dir {port} {script}"
    ),
    "tensorflow_workers": "{python} {script}",
    # Horovod reaches other machines by ssh; both processes are on this one.
    "mxnet_horovod": "{folder}/horovodrun --gloo -np 2 {python} {script}",
}


class Launchers:
    """One run of a script: a launcher on each machine, or the one that it needs."""

    def __init__(
        self, name: str, machines: list[Any], folder: Path, arguments: list[str],
        launcher: str = "",
    ) -> None:  # fmt: skip
        self.port = port = free_port()
        ours = machines if name != "mxnet_horovod" else machines[:1]
        self.running: list[subprocess.Popen[str]] = []
        self.folders = [folder / f"machine {rank}" for rank in range(len(ours))]
        for rank, machine in enumerate(ours):
            self.folders[rank].mkdir(exist_ok=True)
            command = (launcher or LAUNCHERS[name]).format(
                python=sys.executable, folder=Path(sys.executable).parent, rank=rank,
                addresses=[machines[0].address, machine.address], port=port,
                is_first=int(rank == 0), script=EXAMPLES / f"{name}.py",
            )  # fmt: skip
            workers = [f"{m.address}:{port + i}" for i, m in enumerate(machines)]
            task = {"type": "worker", "index": rank}
            config = json.dumps({"cluster": {"worker": workers}, "task": task})
            extra = {"TF_CONFIG": config} if name == "tensorflow_workers" else {}
            prefix = machine.prefix if len(ours) > 1 else []
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

    def kill(self, which: int) -> None:
        """Kill a machine: the launcher, and the workers, which leave its session."""
        for pid in [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]:
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                if Path(f"/proc/{pid}/cwd").samefile(self.folders[which]):
                    os.kill(pid, signal.SIGKILL)

    def __enter__(self) -> Launchers:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, as whoever starts a run again would."""
        for which, process in enumerate(self.running):
            self.kill(which)
            process.wait()
