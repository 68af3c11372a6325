"""The scripts of `examples/`: two machines train as one device, also after a kill.

Each is started on two machines, one of them is killed in the middle of the run, both
are started again, and the weights are those of the script for one device. After ten
kills they are also compared, bit for bit, with those of a run that nobody disturbed.

D2LMULTI_KILLS=10 pytest tests/processes/test_examples.py    (1 kill when not set)
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.launchers import EXAMPLES, LAUNCHERS, MOST, Launchers
from processes.reading import READ

from d2lmulti.launch.processes import environment

KILLS = int(os.environ.get("D2LMULTI_KILLS", "1"))
SETTINGS = ["--dtype", "float64", "--batch-size", "64"]
BACKENDS = {"pytorch": "torch", "paddle": "paddle", "mxnet": "mxnet"}


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
            run.wait_until(run.epochs)
            run.kill(int(rng.integers(len(run.running))))
        assert min(run.epochs()) > done  # it went on
        done = max(run.epochs())
    # The kill may have come between a save and its report.
    arguments = [*SETTINGS, "--epochs", str(done + 3), "--checkpoint", str(path)]
    with Launchers(name, machines, tmp_path, arguments) as run:
        status = [process.wait(MOST) for process in run.running]
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
    if KILLS == 1:
        return
    # As many ranks add up in the same order, so the bits are those of no kill at all.
    arguments[-1] = str(tmp_path / "undisturbed")
    with Launchers(name, machines, tmp_path, arguments) as run:
        status = [process.wait(MOST) for process in run.running]
    assert status == [0] * len(status), run.said()[-2000:]
    for p, q in zip(weights[0], READ[name](tmp_path / "undisturbed"), strict=True):
        assert p.tobytes() == q.tobytes()
