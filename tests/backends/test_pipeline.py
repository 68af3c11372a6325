"""A network cut into stages equals one device: every schedule, model and count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from backends.compare import assert_near, train_alone

from d2lmulti import SGD, devices, get_model, ledger
from d2lmulti.backends.protocol import Backend
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_stages,
    place_params,
    train_stages,
)
from d2lmulti.plans import schedules as plans
from d2lmulti.plans.pipeline import stage_ranks

BATCH, MICRO = 5, 3  # micro-batches of 2, 2 and 1 examples
TINY = make_transformer("tiny", vocabulary=11, context=5, width=6, heads=2, blocks=2)
MODELS = {"lenet": get_model("lenet"), "deep_mlp": get_model("deep_mlp"), "tiny": TINY}
SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble", "zb_h2")
ALL = (*SCHEDULES, "zb_v")
# Each two of model, schedule and number of devices meet; not each three.
RUNS = [
    (model, schedule, 2 + (i + j) % 3)
    for i, model in enumerate(MODELS)
    for j, schedule in enumerate(ALL)
]


def batch(model: str, rng: np.random.Generator, dtype: str) -> tuple:
    if model == "tiny":
        return rng.integers(0, 11, (BATCH, 5)), rng.integers(0, 11, (BATCH, 5))
    X = rng.normal(size=(BATCH, 1, 28, 28)).astype(dtype)
    return X, rng.integers(0, 10, BATCH)


def draws(name: str, steps: int, dtype: str) -> tuple[list[np.ndarray], list[tuple]]:
    """Return the first weights, and a batch for each step."""
    rng = np.random.default_rng(5)
    start = [p.astype(dtype) for p in MODELS[name].initial(rng)]
    return start, [batch(name, rng, dtype) for _ in range(steps)]


def in_stages(
    B: Backend, name: str, steps: int, dtype: str, k: int, chunks: int = 1, **named
) -> tuple:
    """The same run with the network cut over k devices."""
    optimizer, (start, batches) = SGD(0.9), draws(name, steps, dtype)
    places, stages = devices(k, B.name), cut_stages(MODELS[name], k * chunks)
    ranks = lie(named["schedule"], k, chunks)
    stage_params = place_params([B.array(p) for p in start], stages, places, ranks)
    states = [optimizer.init(params) for params in stage_params]
    losses = []
    for X, y in batches:
        parts = train_stages(
            B.array(X), B.array(y), stage_params, places, 0.05, stages=stages,
            optimizer=optimizer, states=states, micro_batches=MICRO, **named,
        )  # fmt: skip
        losses.append(sum(float(B.numpy(part)) for part in parts))
    grads = [B.numpy(B.grad(p)) for params in stage_params for p in params]
    weights = [B.numpy(p) for p in gather_stages(stage_params)]
    return losses, weights, grads


@pytest.fixture(scope="module")
def alone(framework: Backend) -> Callable[[str, int, str], tuple]:
    """One device, for (model, steps, dtype), trained once."""

    def run(name: str, steps: int, dtype: str) -> tuple:
        how = *draws(name, steps, dtype), 0.05, SGD(0.9)
        return train_alone(framework, MODELS[name], *how)

    return cache(run)


def lie(schedule: str, k: int, chunks: int) -> list[int]:
    """Give the ranks of the stages."""
    return stage_ranks(plans.SCHEDULES[schedule](k, 1, chunks))


def chunks_for(schedule: str, model: str, k: int) -> int:
    if schedule != "interleaved":
        return plans.CHUNKS[schedule]
    return len(MODELS[model].layers) // k


@pytest.mark.dealt
@pytest.mark.parametrize(("model", "schedule", "k"), RUNS)
def test_ten_steps_equal_one_device(framework, alone, model, schedule, k) -> None:
    if schedule == "zb_v":  # two stages a device
        k = min(k, len(MODELS[model].layers) // 2)
    expected = alone(model, 10, "float64")
    chunks = chunks_for(schedule, model, k)
    got = in_stages(framework, model, 10, "float64", k, chunks, schedule=schedule)
    assert got[0] == pytest.approx(expected[0], rel=1e-12)
    for kind in (1, 2):  # weights, gradients of the weights
        assert len(got[kind]) == len(expected[kind])
        assert_near(got[kind], expected[kind])


@pytest.mark.dealt
@pytest.mark.parametrize(
    ("model", "schedule", "k"),
    [("lenet", "zb_v", 2), ("deep_mlp", "zero_bubble", 3), ("tiny", "1f1b", 3)],
)
def test_recomputation_changes_nothing(framework, alone, model, schedule, k) -> None:
    """Nor does float32, but for its rounding errors."""
    chunks = plans.CHUNKS[schedule]
    for dtype, steps, tolerance in (("float64", 10, 1e-12), ("float32", 1, 1e-4)):
        expected = alone(model, steps, dtype)
        got = in_stages(
            framework, model, steps, dtype, k, chunks, schedule=schedule,
            recompute=True,
        )  # fmt: skip
        assert got[0] == pytest.approx(expected[0], rel=tolerance)
        for kind in (1, 2):
            assert_near(got[kind], expected[kind], tolerance)


# -- bytes ----------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_bytes_between_stages_equal_the_formula(B, schedule, k) -> None:
    """2 * n * width * 8 a border, whatever the micro-batches; 2m messages a border."""
    model = MODELS["deep_mlp"]
    chunks = 2 if schedule in ("interleaved", "zb_v") else 1
    ranks = lie(schedule, k, chunks)
    places, stages = devices(k, B.name), cut_stages(model, k * chunks)
    start = model.initial(np.random.default_rng(0))
    X, y = map(B.array, batch("deep_mlp", np.random.default_rng(0), "float64"))
    with ledger() as placed:
        stage_params = place_params([B.array(p) for p in start], stages, places, ranks)
    with ledger() as moved:
        train_stages(
            X, y, stage_params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=MICRO,
        )  # fmt: skip
    assert placed.loaded == 8 * sum(p.size for p in start) and placed.bytes == 0
    crossings = [(a, b) for a, b in pairwise(ranks) if a != b]
    borders = len(crossings)
    assert borders == (0 if k == 1 else k * chunks - (2 if schedule == "zb_v" else 1))
    assert moved.bytes == borders * 2 * BATCH * 64 * 8
    assert moved.messages == moved.rounds == borders * 2 * MICRO
    assert moved.loaded == BATCH * (28 * 28 + 1) * 8
    for pair in set(moved.links):
        both = crossings.count(pair) + crossings.count(pair[::-1])
        assert moved.links[pair] == both * BATCH * 64 * 8
