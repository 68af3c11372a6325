"""A run that is killed at any moment, and goes on, ends with the same weights."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from backends.compare import digest
from processes import dying
from processes.dying import SETTINGS, dying_run

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.processes.launcher import launch
from d2lmulti.training.checkpoint import load_checkpoint

pytestmark = pytest.mark.cluster

KILLS = 10


@pytest.fixture(scope="module")
def data() -> d2lmulti.Dataset:
    some = d2lmulti.load("digits").first(160)
    return replace(some, test_X=some.test_X[:16], test_y=some.test_y[:16])


def undisturbed(B: Backend, data: d2lmulti.Dataset) -> list[str]:
    history = d2lmulti.train(2, dataset=data, backend=B.name, **SETTINGS)
    return [digest(B.numpy(p)) for p in history.device_params[0]]


@pytest.mark.numpy
def test_ten_kills_lose_nothing(reference, data, tmp_path: Path) -> None:
    want, path = undisturbed(reference, data), tmp_path / "run.npz"
    run = launch(dying_run, 2, data, str(path), KILLS, backend="numpy", restarts=KILLS)
    assert run.restarts == KILLS
    assert run.values == [want, want]
    assert [digest(p) for p in load_checkpoint(path).params] == want
    assert os.listdir(tmp_path) == ["run.npz"]  # what a kill left is cleared away


@pytest.mark.torch
def test_torchrun_starts_a_killed_run_again(load, data, tmp_path: Path) -> None:
    path, given = tmp_path / "run.npz", tmp_path / "data"
    given.write_bytes(pickle.dumps(data))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1"]
    command += [dying.__file__, str(given), str(path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "D2LMULTI_BACKEND": "torch",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr  # or there was nothing to go on from
    saved = [digest(p) for p in load_checkpoint(path).params]
    assert saved == undisturbed(load("torch"), data)
