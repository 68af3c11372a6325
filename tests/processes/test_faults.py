"""A run that is killed at any moment, and goes on, ends with the same weights."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from processes.dying import SETTINGS, dying_run

import d2lmulti
from d2lmulti.comm.launch import launch
from d2lmulti.training.checkpoint import load_checkpoint

KILLS = 10


@pytest.mark.reference
def test_ten_kills_lose_nothing(reference, tmp_path: Path) -> None:
    data = d2lmulti.load("digits").first(160)
    data = replace(data, test_X=data.test_X[:16], test_y=data.test_y[:16])
    undisturbed = d2lmulti.train(2, dataset=data, backend="reference", **SETTINGS)
    want = [reference.numpy(p).tobytes() for p in undisturbed.device_params[0]]
    path = tmp_path / "run.npz"
    run = launch(
        dying_run, 2, data, str(path), KILLS, backend="reference", restarts=KILLS
    )
    assert run.restarts == KILLS
    assert run.values == [want, want]
    assert [p.tobytes() for p in load_checkpoint(path).params] == want
    assert os.listdir(tmp_path) == ["run.npz"]  # what a kill left is cleared away
