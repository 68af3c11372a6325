"""The scripts of `examples/`: two machines train as one device, also after a kill.

Each is started on two machines, one of them is killed in the middle of the run, both
are started again, and the weights are those of the script for one device.

D2LMULTI_KILLS=10 pytest tests/processes/test_examples.py    (1 kill when not set)
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

import numpy as np
import pytest
from processes.reading import READ

from d2lmulti.launch.processes import environment, free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KILLS = int(os.environ.get("D2LMULTI_KILLS", "1"))
SETTINGS = ["--dtype", "float64", "--batch-size", "64"]
TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 "
    "--node-rank {rank} --master-addr {addresses[0]} --master-port {port} {script}"
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
BACKENDS = {"pytorch": "torch", "paddle": "paddle", "mxnet": "mxnet"}


class Launchers:
    """One run of a script: a launcher on each machine, or the one that it needs."""

    def __init__(
        self, name: str, machines: list[Any], folder: Path, arguments: list[str]
    ) -> None:
        self.port = port = free_port()
        ours = machines if name != "mxnet_horovod" else machines[:1]
        self.running: list[subprocess.Popen[str]] = []
        self.folders = [folder / f"machine {rank}" for rank in range(len(ours))]
        for rank, machine in enumerate(ours):
            self.folders[rank].mkdir(exist_ok=True)
            addresses = [machines[0].address, machine.address]
            launcher = LAUNCHERS[name].format(
                python=sys.executable, folder=Path(sys.executable).parent, rank=rank,
                addresses=addresses, port=port, script=EXAMPLES / f"{name}.py",
            )  # fmt: skip
            workers = [f"{m.address}:{port + i}" for i, m in enumerate(machines)]
            task = {"type": "worker", "index": rank}
            config = json.dumps({"cluster": {"worker": workers}, "task": task})
            extra = {"TF_CONFIG": config} if name == "tensorflow_workers" else {}
            prefix = machine.prefix if len(ours) > 1 else []
            with (self.folders[rank] / f"said {port}").open("w") as said:
                process = subprocess.Popen(
                    [*prefix, *launcher.split(), *arguments],
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

    def wait_for_an_epoch(self) -> None:
        while not self.epochs():
            assert self.running[0].poll() is None, self.said()[-2000:]
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


@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_machines_train_as_one_device_after_a_kill(
    name: str, load: Callable, machines: list[Any], tmp_path: Path, request: Any
) -> None:
    framework = name.partition("_")[0]
    if framework in BACKENDS:
        load(BACKENDS[framework])
    if name in ("mxnet_horovod", "tensorflow_workers"):
        request.getfixturevalue("horovod" if framework == "mxnet" else framework)
    path, done, rng = tmp_path / "run", 0, np.random.default_rng(0)
    for _ in range(KILLS):
        arguments = [*SETTINGS, "--epochs", "1000", "--checkpoint", str(path)]
        with Launchers(name, machines, tmp_path, arguments) as run:
            run.wait_for_an_epoch()
            run.kill(int(rng.integers(len(run.running))))
        assert min(run.epochs()) > done  # it went on
        done = max(run.epochs())
    # The kill may have come between a save and its report.
    arguments = [*SETTINGS, "--epochs", str(done + 3), "--checkpoint", str(path)]
    with Launchers(name, machines, tmp_path, arguments) as run:
        status = [process.wait(200) for process in run.running]
    assert status == [0] * len(status), run.said()[-2000:]
    assert min(run.epochs()) > done and max(run.epochs()) == done + 3

    alone = tmp_path / "alone"
    arguments[-1] = str(alone)
    script = EXAMPLES / f"{framework}_single.py"
    subprocess.run(
        [sys.executable, script, *arguments],
        env=environment(), check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    weights = [READ[name](path), READ[f"{framework}_single"](alone)]
    assert len(weights[1]) >= 6
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
