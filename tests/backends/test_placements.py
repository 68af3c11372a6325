"""Stages lie where the lists say: a proved schedule trains the right weights.

D2LMULTI_SCHEDULES=300    so many random schedules on each backend, instead of 25
"""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest
from backends.compare import (
    arrays,
    assert_all_same_bits,
    assert_near,
    start,
    train_alone,
)
from backends.random_schedules import MOST_STAGES, Drawn, draw, v_with_late_weights

from d2lmulti import SGD, devices
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import InvalidInput, PlanError
from d2lmulti.models.networks import make_mlp
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_stages,
    place_params,
    train_stages,
)
from d2lmulti.plans.pipeline import (
    BackwardWeight,
    stage_ranks,
    verify_schedule,
)
from d2lmulti.plans.schedules import SCHEDULES

COUNT = int(os.environ.get("D2LMULTI_SCHEDULES", "25"))
MODEL = make_mlp("small", (6, *[5] * MOST_STAGES, 4))  # MOST_STAGES + 1 layers
STEPS, LR = 3, 0.1
Result = tuple[list[float], list[np.ndarray]]


def batches(examples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(examples)
    return [
        (rng.normal(size=(examples, 6)), rng.integers(0, 4, examples))
        for _ in range(STEPS)
    ]


def one_device(B: Backend, examples: int) -> Result:
    """Train without stages, without micro-batches."""
    first = MODEL.initial(np.random.default_rng(1))
    losses, weights, _ = train_alone(B, MODEL, first, batches(examples), LR, SGD(0.9))
    return losses, weights


def as_drawn(B: Backend, drawn: Drawn) -> Result:
    """Train with the lists, every stage on the device that they name.

    In a group of processes losses are on one rank.
    """
    stages, optimizer, losses = cut_stages(MODEL, drawn.stages), SGD(0.9), []
    places = devices(drawn.devices, B.name)
    ranks = stage_ranks(drawn.lists, drawn.stages)
    placed = place_params(start(B, MODEL, seed=1), stages, places, ranks)
    states = [optimizer.init(params) for params in placed]
    for X, y in batches(drawn.examples):
        parts = train_stages(
            B.array(X), B.array(y), placed, places, LR, stages=stages,
            schedule=drawn.lists, micro_batches=drawn.micro_batches,
            optimizer=optimizer, states=states,
        )  # fmt: skip
        losses.append(sum(float(B.numpy(part)) for part in parts))
    return losses, arrays(B, [gather_stages(placed)])[0]


def check_equal(got: Result, expected: Result) -> None:
    assert got[0] == pytest.approx(expected[0], rel=1e-12)
    assert_near(got[1], expected[1])


def test_random_placements_and_orders_train_like_one_device(B) -> None:
    alone = cache(lambda examples: one_device(B, examples))
    for seed in range(COUNT):
        drawn = draw(seed)
        verify_schedule(drawn.lists, drawn.stages, drawn.micro_batches)
        check_equal(as_drawn(B, drawn), alone(drawn.examples))


def test_a_v_shape_with_late_weights_trains_like_one_device(B) -> None:
    drawn = v_with_late_weights()
    verify_schedule(drawn.lists, 4, 4)
    assert stage_ranks(drawn.lists) == [0, 1, 1, 0]
    check_equal(as_drawn(B, drawn), one_device(B, drawn.examples))


# -- refused before the first tensor moves ----------------------------------------


def refused(B, lists, error, match, ranks=None) -> None:
    """Expect an error, and weights and gradients as they were."""
    stages, places = cut_stages(MODEL, 4), devices(len(lists), B.name)
    placed = place_params(
        start(B, MODEL, seed=1), stages, places, ranks or [0, 1, 1, 0]
    )
    X, y = batches(5)[0]
    with pytest.raises(error, match=match):
        train_stages(
            B.array(X), B.array(y), placed, places, LR, stages=stages, schedule=lists,
            micro_batches=4,
        )  # fmt: skip
    first = arrays(B, [start(B, MODEL, seed=1)])
    assert_all_same_bits(arrays(B, [gather_stages(placed)]), first)


def test_a_stage_on_two_devices_is_refused(B) -> None:
    lists = [list(mine) for mine in SCHEDULES["zb_v"](2, 4)]
    lists[0].remove(BackwardWeight(0, 3))
    lists[1].insert(-1, BackwardWeight(0, 3))
    message = r"device 1, BackwardWeight\(stage 0, .*3\): stage 0 lies on device 0"
    refused(B, lists, PlanError, message)


def test_parameters_that_lie_elsewhere_are_refused(B) -> None:
    lists = SCHEDULES["zb_v"](2, 4)
    message = "on ranks .0, 1, 1, 0., .*stage_ranks"
    refused(B, lists, InvalidInput, message, ranks=[0, 1, 0, 1])


def test_a_device_without_a_stage_is_refused() -> None:
    lists = [*SCHEDULES["gpipe"](1, 2), SCHEDULES["gpipe"](1, 1)[0][-1:]]
    with pytest.raises(PlanError, match="device 1 computes no stage"):
        verify_schedule(lists, 1, 2)
