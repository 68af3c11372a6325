"""The scripts of `examples/`: two machines train as one device, also after a kill.

Each is started on two machines, one of them is killed in the middle of the run, both
are started again, and the weights are those of the script for one device. With
`D2LMULTI_KILLS=10` a launcher or a worker alone is killed, ten times, at any moment,
and the weights are also, bit for bit, those of a run that nobody disturbed; and in
float32 as many test images are right as on one device, but for two at most.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends.compare import assert_near
from processes.conftest import NO_GPU
from processes.launchers import EXAMPLES, LAUNCHERS, MOST, Launchers
from processes.reading import READ

from d2lmulti.processes.spawn import environment

pytestmark = pytest.mark.cluster

KILLS = int(os.environ.get("D2LMULTI_KILLS", "1"))
SETTINGS = ["--dtype", "float64", "--batch-size", "64"]
# Once is enough for the scripts that test_two_machines.py kills, too.
NAMES = [name for name in LAUNCHERS if KILLS > 1 or not name.startswith("pytorch")]
BACKENDS = {"pytorch": "torch", "paddle": "paddle", "mxnet": "mxnet"}


@pytest.mark.timeout(300 * KILLS)
@pytest.mark.parametrize("name", NAMES)
def test_two_machines_train_as_one_device_after_a_kill(
    name: str, load: Callable, machines: list[Any], tmp_path: Path, request: Any,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    framework = name.partition("_")[0]
    if framework in BACKENDS:
        load(BACKENDS[framework])
    if name in ("mxnet_horovod", "tensorflow_workers"):
        request.getfixturevalue("horovod" if framework == "mxnet" else framework)
    if name == "mxnet_horovod":  # it looks its own name up
        machines = request.getfixturevalue("named")
    path, done, rng = tmp_path / "run", 0, np.random.default_rng(0)
    before = [machine.received() for machine in machines]
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
            if what == "worker":  # of any machine, also one without a launcher
                which = int(rng.integers(len(machines)))
            run.kill(which, what)
            if KILLS > 1:  # and what of the others? The rest is ended then
                kills.append((what, run.seconds_to_end(10)))
                print(f"{name}, epoch {max(run.epochs())}: {kills[-1]}", flush=True)
        assert min(run.epochs()) > done  # it went on
        done = max(run.epochs())
    # The kill may have come between a save and its report.
    arguments = [*SETTINGS, "--epochs", str(done + 3), "--checkpoint", str(path)]
    alone = tmp_path / "alone"
    with begun(framework, [*arguments[:-1], str(alone)]) as one_device:
        epochs = finished(name, machines, tmp_path, arguments).epochs()
        one_device.communicate(timeout=MOST)
    assert one_device.returncode == 0
    assert min(epochs) > done and max(epochs) == done + 3
    weights = [READ[name](path), READ[f"{framework}_single"](alone)]
    assert len(weights[1]) >= 6
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()
    if machines[0].prefix:  # the gradients of an epoch, and more, crossed the cable
        for machine, count in zip(machines, before, strict=True):
            assert machine.received() > count + 24 * sum(p.nbytes for p in weights[1])
    if KILLS == 1:
        return
    # As many ranks add up in the same order, so the bits are those of no kill at all.
    arguments[-1] = str(tmp_path / "undisturbed")
    finished(name, machines, tmp_path, arguments)
    for p, q in zip(weights[0], READ[name](tmp_path / "undisturbed"), strict=True):
        assert p.tobytes() == q.tobytes()
    arguments[-1] = str(tmp_path / "one")
    finished(name, machines[:1], tmp_path, arguments)
    assert_near(READ[name](tmp_path / "one"), weights[1])
    arguments = ["--epochs", "10", "--checkpoint", str(tmp_path / "many 32")]
    said = finished(name, machines, tmp_path, arguments).said()
    arguments[-1] = str(tmp_path / "one 32")
    right = [right_in(text) for text in (said, on_one_device(framework, arguments))]
    assert abs(right[0] - right[1]) <= 2 and right[1] > 200
    seen = {"script": name, "kills": kills, "epochs": done + 3, "right": right}
    different = {machine.address for machine in machines}
    record_property("survived", seen | {"machines": len(different)})


def begun(framework: str, arguments: list[str]) -> subprocess.Popen[str]:
    """Start the script for one device."""
    script = EXAMPLES / f"{framework}_single.py"
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=environment() | NO_GPU, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip


def on_one_device(framework: str, arguments: list[str]) -> str:
    """What the script for one device says."""
    with begun(framework, arguments) as process:
        said, _ = process.communicate(timeout=MOST)
    assert process.returncode == 0
    return said


def right_in(said: str) -> int:
    """How many test images of 261 were right in the end."""
    *_, count = re.findall(r"(\d+)/261 right", said)
    return int(count)


def finished(
    name: str, machines: list[Any], folder: Path, arguments: list[str],
    launcher: str = "",
) -> Launchers:  # fmt: skip
    """Run a script to its end."""
    with Launchers(name, machines, folder, arguments, launcher) as run:
        status = [process.wait(MOST) for process in run.running]
    assert status == [0] * len(status), run.said()[-2000:]
    return run
