"""The scripts of `examples/`: two machines train as one device, also after a kill.

Each is started on two machines, one of them is killed in the middle of the run, both
are started again, and the weights are those of the script for one device. With
`D2LMULTI_KILLS=10` a launcher or a worker alone is killed, ten times, at any moment,
and the weights are also, bit for bit, those of a run that nobody disturbed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
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


@pytest.mark.timeout(300 * KILLS)
@pytest.mark.parametrize("name", LAUNCHERS)
def test_two_machines_train_as_one_device_after_a_kill(
    name: str, load: Callable, machines: list[Any], tmp_path: Path, request: Any,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    framework = name.partition("_")[0]
    if framework in BACKENDS:
        load(BACKENDS[framework])
    if name in ("mxnet_horovod", "tensorflow_workers"):
        request.getfixturevalue("horovod" if framework == "mxnet" else framework)
    path, done, rng = tmp_path / "run", 0, np.random.default_rng(0)
    whats = ["launcher", "worker"] if KILLS > 1 else ["machine"]
    if name == "tensorflow_workers":  # has no launcher
        whats = whats[-1:]
    kills: list[tuple[str, float | None]] = []
    for _ in range(KILLS):
        arguments = [*SETTINGS, "--epochs", "1000", "--checkpoint", str(path)]
        with Launchers(name, machines, tmp_path, arguments) as run:
            run.wait_until(run.epochs)
            time.sleep(rng.uniform(0, KILLS - 1) / 5)
            which, what = int(rng.integers(len(run.running))), str(rng.choice(whats))
            run.kill(which, what)
            if KILLS > 1:  # and what of the others? The rest is ended then
                kills.append((what, run.seconds_to_end(10)))
                print(f"{name}, epoch {max(run.epochs())}: {kills[-1]}", flush=True)
        assert min(run.epochs()) > done  # it went on
        done = max(run.epochs())
    # The kill may have come between a save and its report.
    arguments = [*SETTINGS, "--epochs", str(done + 3), "--checkpoint", str(path)]
    epochs = finished(name, machines, tmp_path, arguments)
    assert min(epochs) > done and max(epochs) == done + 3

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
    finished(name, machines, tmp_path, arguments)
    for p, q in zip(weights[0], READ[name](tmp_path / "undisturbed"), strict=True):
        assert p.tobytes() == q.tobytes()
    arguments[-1] = str(tmp_path / "one")
    finished(name, machines[:1], tmp_path, arguments)
    for p, q in zip(READ[name](tmp_path / "one"), weights[1], strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
    record_property("survived", {"script": name, "kills": kills, "epochs": done + 3})


def finished(
    name: str, machines: list[Any], folder: Path, arguments: list[str]
) -> list[int]:
    """Run a script to its end; give the epochs that it reported."""
    with Launchers(name, machines, folder, arguments) as run:
        status = [process.wait(MOST) for process in run.running]
    assert status == [0] * len(status), run.said()[-2000:]
    return run.epochs()
