"""Stages lie where the lists say, across processes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backends.random_schedules import draw, v_with_late_weights
from backends.test_placements import Result, as_drawn, check_equal, one_device
from processes.staying import Staying, started_once

from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput, PlanError
from d2lmulti.plans.pipeline import BackwardWeight, stage_ranks

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
        pytest.param(engine, backend, marks=started_once(engine, backend, 2))
        for engine, backend in [
            ("shared_memory", "numpy"), ("shared_memory", "mxnet"), ("torch", "torch"),
        ]
    ],
)  # fmt: skip
def test_any_placement_trains_like_one_device(
    load: Any, staying: Staying, engine: str, backend: str
) -> None:
    B, everywhere = load(backend), staying(engine, backend, 2)(train_all)
    for i, drawn in enumerate(all_drawn()):
        ranks = stage_ranks(drawn.lists, drawn.stages)
        losses, _ = everywhere[ranks[-1]][i]
        for rank in range(2):
            _, weights = everywhere[rank][i]
            check_equal((losses, weights), one_device(B, drawn.examples))
        other = everywhere[1 - ranks[-1]][i][0]
        assert np.sum(other) == 0  # the losses are on one rank
    for found in everywhere:
        assert "stage 3 lies on device 0" in found[-1]
