"""Stages lie where the lists say, across processes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends.random_schedules import draw, v_with_late_weights
from backends.test_placements import Result, as_drawn, check_equal, one_device

from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput, PlanError
from d2lmulti.launch import launch
from d2lmulti.plans.pipeline.instructions import BackwardWeight
from d2lmulti.plans.pipeline.stage_ranks import stage_ranks

SEEDS = range(8)


def all_drawn() -> list:
    return [v_with_late_weights(), *(draw(seed, devices=2) for seed in SEEDS)]


def train_all() -> list[Result]:
    """Train every schedule on this rank, with the others; then one that is refused."""
    B = get_backend()
    found: list[Any] = [as_drawn(B, drawn) for drawn in all_drawn()]
    wrong = v_with_late_weights()
    first, second = (list(mine) for mine in wrong.lists)
    first.remove(BackwardWeight(3, 0))
    second.insert(-1, BackwardWeight(3, 0))
    try:
        as_drawn(B, wrong._replace(lists=[first, second]))
    except (PlanError, InvalidInput) as error:
        return [*found, str(error)]
    return [*found, "not refused"]


@pytest.mark.parametrize(
    ("engine", "backend"),
    [
        pytest.param("shared_memory", "numpy", marks=pytest.mark.numpy),
        pytest.param("shared_memory", "mxnet", marks=pytest.mark.mxnet),
        pytest.param("torch", "torch", marks=pytest.mark.torch),
    ],
)
def test_any_placement_trains_like_one_device(load, engine: str, backend: str) -> None:
    B = load(backend)
    run = launch(train_all, 2, engine=engine, backend=backend, timeout=200)
    for i, drawn in enumerate(all_drawn()):
        ranks = stage_ranks(drawn.lists, drawn.stages)
        losses, _, _ = run.values[ranks[-1]][i]
        _, _, dX = run.values[ranks[0]][i]
        for rank in range(2):
            _, weights, _ = run.values[rank][i]
            check_equal((losses, weights, dX), one_device(B, drawn.examples))
        other = run.values[1 - ranks[-1]][i][0]
        assert np.sum(other) == 0  # the losses are on one rank
    for found in run.values:
        assert "stage 3 lies on device 0" in found[-1]
