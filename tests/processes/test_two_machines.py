"""Two launchers, one a machine: their processes train as one process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.processes.spawn import environment, free_port
from d2lmulti.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.cluster

TRAIN = ["--model", "mlp", "--dtype", "float64", "--epochs", "1", "--checkpoint"]
LAUNCHERS = {
    "torch": (
        "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --node-rank {machine} "
        "--master-addr {address} --master-port {port} -m d2lmulti"
    ),
    "paddle": (
        "-m paddle.distributed.launch --nnodes 2 --nproc_per_node 1 --rank {machine} "
        "--master {address}:{port} --host {own} {python} -m d2lmulti"
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=getattr(pytest.mark, n)) for n in LAUNCHERS]
)
def test_two_launchers_train_as_one_device(
    name: str,
    load: Callable[[str], Backend],
    machines: list[Any],
    tmp_path: Path,
) -> None:
    B, file, port = load(name), tmp_path / "run.npz", free_port()
    before = [machine.received() for machine in machines]
    launchers = []
    for number, machine in enumerate(machines):
        folder = tmp_path / f"machine {number}"
        folder.mkdir()
        launcher = LAUNCHERS[name].format(
            machine=number, address=machines[0].address, own=machine.address,
            port=port, python=sys.executable,
        )  # fmt: skip
        launchers.append(
            subprocess.Popen(
                [*machine.prefix, sys.executable, *launcher.split(),
                 "train", "--backend", name, *TRAIN, str(file)],
                env=environment() | machine.environment | {"D2LMULTI_QUIET": "1"},
                cwd=folder, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    try:
        said = [launcher.communicate(timeout=100) for launcher in launchers]
    finally:
        for launcher in launchers:
            if launcher.poll() is None:
                os.killpg(launcher.pid, signal.SIGKILL)
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    alone = d2lmulti.train(1, model="mlp", dtype="float64", epochs=1, backend=name)
    result = f"accuracy {alone.accuracies[0]:.4f}, loss {alone.losses[0]:.4f}"
    assert [result in out + err for out, err in said] == [True, False], said
    saved = load_checkpoint(file).params
    for p, q in zip(saved, map(B.numpy, alone.device_params[0]), strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
    if machines[0].prefix:  # the gradients went through the cable, 12 times
        sent = 12 * sum(p.nbytes for p in saved)
        for machine, count in zip(machines, before, strict=True):
            assert machine.received() - count > 0.9 * sent
