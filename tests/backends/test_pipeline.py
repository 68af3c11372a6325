"""A network cut into stages equals one device: every schedule, model and count."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from d2lmulti import SGD, devices, get_model, ledger
from d2lmulti.backends.protocol import Backend
from d2lmulti.cluster.pipeline_record import Durations, PipelineRecord
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_params,
    place_params,
    train_stages,
)

BATCH, MICRO = 5, 3  # micro-batches of 2, 2 and 1 examples
TINY = make_transformer("tiny", vocabulary=11, context=5, width=6, heads=2, blocks=2)
MODELS = {"lenet": get_model("lenet"), "deep_mlp": get_model("deep_mlp"), "tiny": TINY}
SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble")


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def batch(model: str, rng: np.random.Generator, dtype: str) -> tuple:
    if model == "tiny":
        return rng.integers(0, 11, (BATCH, 5)), rng.integers(0, 11, (BATCH, 5))
    X = rng.normal(size=(BATCH, 1, 28, 28)).astype(dtype)
    return X, rng.integers(0, 10, BATCH)


def one_device(B: Backend, name: str, steps: int, dtype: str) -> tuple:
    """Train without any of the library's ways to split."""
    model, rng, optimizer = MODELS[name], np.random.default_rng(5), SGD(0.9)
    params = [B.array(p.astype(dtype)) for p in model.initial(rng)]
    for p in params:
        B.attach_grad(p)
    state, losses = optimizer.start(params), []
    for _ in range(steps):
        X, y = map(B.array, batch(name, rng, dtype))
        if name != "tiny":
            B.attach_grad(X)
        for p in params:
            B.clear_grad_(p)
        with B.record():
            logits = model.forward(B, params, X)
            loss = B.cross_entropy(logits, y.reshape((-1,))).sum()
        B.backward([loss])
        optimizer.step_(params, state, 0.05, n=int(np.prod(y.shape)))
        losses.append(float(B.numpy(loss)))
    dX = [] if name == "tiny" else [B.numpy(B.grad(X))]
    grads = [B.numpy(B.grad(p)) for p in params]
    return losses, [B.numpy(p) for p in params], dX, grads


def in_stages(
    B: Backend, name: str, steps: int, dtype: str, k: int, chunks: int = 1, **named
) -> tuple:
    """The same run with the network cut over k devices."""
    model, rng, optimizer = MODELS[name], np.random.default_rng(5), SGD(0.9)
    start = [B.array(p.astype(dtype)) for p in model.initial(rng)]
    places, stages = devices(k, B.name), cut_stages(model, k * chunks)
    stage_params = place_params(start, stages, places)
    states = [optimizer.start(params) for params in stage_params]
    dX = None if name == "tiny" else B.zeros((BATCH, 1, 28, 28), dtype)
    losses = []
    named.setdefault("micro_batches", MICRO)
    for _ in range(steps):
        X, y = map(B.array, batch(name, rng, dtype))
        parts = train_stages(
            X, y, stage_params, places, 0.05, stages=stages, optimizer=optimizer,
            states=states, input_grad=dX, **named,
        )  # fmt: skip
        losses.append(sum(float(B.numpy(part)) for part in parts))
    grads = [B.numpy(B.grad(p)) for params in stage_params for p in params]
    weights = [B.numpy(p) for p in gather_params(stage_params)]
    return losses, weights, [] if dX is None else [B.numpy(dX)], grads


@pytest.fixture(scope="module")
def alone(framework: Backend) -> Callable[[str, int, str], tuple]:
    """One device, for (model, steps, dtype), trained once."""
    return cache(lambda name, steps, dtype: one_device(framework, name, steps, dtype))


def chunks_for(schedule: str, model: str, k: int) -> int:
    if schedule != "interleaved":
        return 1
    return len(MODELS[model].layers) // k


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
def test_ten_steps_equal_one_device(framework, alone, model, schedule, k) -> None:
    expected = alone(model, 10, "float64")
    chunks = chunks_for(schedule, model, k)
    got = in_stages(framework, model, 10, "float64", k, chunks, schedule=schedule)
    assert got[0] == pytest.approx(expected[0], rel=1e-12)
    for kind in (1, 2, 3):  # weights, input gradient, gradients of the weights
        assert len(got[kind]) == len(expected[kind])
        for a, b in zip(got[kind], expected[kind], strict=True):
            assert relative(a, b) < 1e-12


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
@pytest.mark.parametrize("model", MODELS)
def test_recomputation_changes_nothing(framework, alone, model, schedule) -> None:
    expected = alone(model, 10, "float64")
    got = in_stages(
        framework, model, 10, "float64", 3, schedule=schedule, recompute=True
    )
    assert got[0] == pytest.approx(expected[0], rel=1e-12)
    for kind in (1, 2, 3):
        for a, b in zip(got[kind], expected[kind], strict=True):
            assert relative(a, b) < 1e-12


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("model", MODELS)
def test_float32_gradients_of_one_step(framework, alone, model, schedule) -> None:
    expected = alone(model, 1, "float32")
    chunks = chunks_for(schedule, model, 2)
    got = in_stages(framework, model, 1, "float32", 2, chunks, schedule=schedule)
    for kind in (2, 3):
        for a, b in zip(got[kind], expected[kind], strict=True):
            assert relative(a, b) < 1e-4


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_reference_agrees(reference, schedule) -> None:
    expected = one_device(reference, "tiny", 2, "float64")
    chunks = chunks_for(schedule, "tiny", 3)
    got = in_stages(reference, "tiny", 2, "float64", 3, chunks, schedule=schedule)
    for kind in (1, 3):
        for a, b in zip(got[kind], expected[kind], strict=True):
            assert relative(a, b) < 1e-12


@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_any_number_of_micro_batches(framework, alone, micro_batches) -> None:
    expected = alone("deep_mlp", 2, "float64")
    for schedule in SCHEDULES:
        got = in_stages(
            framework, "deep_mlp", 2, "float64", 4, chunks_for(schedule, "deep_mlp", 4),
            schedule=schedule, micro_batches=micro_batches,
        )  # fmt: skip
        assert got[0] == pytest.approx(expected[0], rel=1e-12)
        for a, b in zip(got[1], expected[1], strict=True):
            assert relative(a, b) < 1e-12


# -- bytes ----------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_bytes_between_stages_equal_the_formula(B, schedule, k) -> None:
    """2 * n * width * 8 a border, whatever the micro-batches; 2m messages a border."""
    model, chunks = MODELS["deep_mlp"], 2 if schedule == "interleaved" else 1
    places, stages = devices(k, B.name), cut_stages(model, k * chunks)
    start = model.initial(np.random.default_rng(0))
    X, y = map(B.array, batch("deep_mlp", np.random.default_rng(0), "float64"))
    with ledger() as placed:
        stage_params = place_params([B.array(p) for p in start], stages, places)
    with ledger() as moved:
        train_stages(
            X, y, stage_params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=MICRO,
        )  # fmt: skip
    assert placed.loaded == 8 * sum(p.size for p in start) and placed.bytes == 0
    borders = len(stages) - 1 if k > 1 else 0
    assert moved.bytes == borders * 2 * BATCH * 64 * 8
    assert moved.messages == moved.rounds == borders * 2 * MICRO
    assert moved.loaded == BATCH * (28 * 28 + 1) * 8
    crossings = [(s % k, (s + 1) % k) for s in range(borders)]
    for pair in set(moved.links):
        both = crossings.count(pair) + crossings.count(pair[::-1])
        assert moved.links[pair] == both * BATCH * 64 * 8


# -- measured: idle slots and live activations -----------------------------------


def measure(B, schedule, p, m, chunks=1, steps=1, **named) -> PipelineRecord:
    net, rng = MODELS["deep_mlp"], np.random.default_rng(0)
    places, stages = devices(p, B.name), cut_stages(net, p * chunks)
    stage_params = place_params([B.array(a) for a in net.initial(rng)], stages, places)
    X = B.array(rng.normal(size=(max(m, 7), 1, 28, 28)))
    y = B.array(rng.integers(0, 10, max(m, 7)))
    record = PipelineRecord(named.pop("durations", Durations()))
    for _ in range(steps):
        train_stages(
            X, y, stage_params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=m, record=record, **named,
        )  # fmt: skip
    return record


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 2), (2, 6), (3, 6), (4, 4), (4, 8)])
def test_measured_idle_share_equals_the_formula(reference, p, m) -> None:
    check_idle_shares(reference, p, m)


def test_measured_idle_share_on_each_backend(framework) -> None:
    check_idle_shares(framework, 3, 3)


def check_idle_shares(B: Backend, p: int, m: int) -> None:
    def idle(schedule: str, chunks: int = 1) -> tuple[float, float]:
        record = measure(B, schedule, p, m, chunks)
        return record.idle, p * record.makespan

    for schedule in ("gpipe", "1f1b"):
        none, whole = idle(schedule)
        assert none * (m + p - 1) == whole * (p - 1)
    for v in (1, 2):
        none, whole = idle("interleaved", v)
        assert none * (v * m + p - 1) == whole * (p - 1)
    none, whole = idle("sequential")
    assert none * p == whole * (p - 1)
    none, whole = idle("zero_bubble")
    assert none * (3 * m + p - 1) == whole * (p - 1)


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 6), (4, 3)])
def test_measured_live_activations_equal_the_formula(B, p, m) -> None:
    live = {s: measure(B, s, p, m).peak_live for s in SCHEDULES if s != "interleaved"}
    assert live["sequential"] == [1] * p
    assert live["gpipe"] == [m] * p
    assert live["1f1b"] == [min(m, p - s) for s in range(p)]
    assert live["zero_bubble"] == [min(m, p)] * p


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (2, 2, 3), (4, 4, 2), (4, 8, 2)])
def test_measured_live_activations_interleaved(B, p, m, v) -> None:
    record = measure(B, "interleaved", p, m, v)
    assert record.device_peak_live == [
        min(v * m, 2 * (p - d - 1) + (v - 1) * p + 1) for d in range(p)
    ]


def test_bytes_held_are_those_of_inputs_and_layers(B) -> None:
    """GPipe, 2 stages of 4 layers, 7 examples in 2, 2, 2 and 1, all held at once."""
    kept = measure(B, "gpipe", 2, 4).device_peak_bytes
    # The first stage's input and 4 outputs; one gradient arrives for 1 or 2 examples,
    # and the micro-batch that is first on its way back has one.
    assert kept[0] == 8 * (7 * (784 + 4 * 64) + 1 * 64)
    assert kept[1] == 8 * (7 * (64 + 3 * 64 + 10))
    again = measure(B, "gpipe", 2, 4, recompute=True).device_peak_bytes
    assert again[0] == 8 * (7 * 784 + 1 * (4 * 64 + 64))
    # On the last stage the second micro-batch back is larger: 2 of 6 examples.
    assert again[1] == 8 * (6 * 64 + 2 * (3 * 64 + 10))


def test_durations_for_each_stage_and_for_messages(reference) -> None:
    slow = Durations(forward=[1, 1, 3, 1], backward=[2, 2, 6, 2])
    record = measure(reference, "1f1b", 4, 8, durations=slow)
    assert record.busy(2) == 8 * 9 and record.busy(0) == 8 * 3
    assert record.idle_share > 0.5  # all others wait for the slow stage
    late = measure(reference, "sequential", 2, 1, durations=Durations(transfer=5))
    assert late.makespan == 2 * 3 + 2 * 5
    again = measure(reference, "sequential", 2, 1, recompute=True)
    assert again.makespan == 2 * (1 + 1 + 2)


def test_slots_of_a_device_do_not_overlap_and_inputs_come_first(reference) -> None:
    record = measure(reference, "interleaved", 4, 4, 2, steps=2)  # the second's
    assert len(record.slots) == 8 * 4 * 2
    for d in range(4):
        mine = [slot for slot in record.slots if slot.device == d]
        for a, b in zip(mine[:-1], mine[1:], strict=True):
            assert a.end <= b.start
    ends = {str(slot.instruction): slot.end for slot in record.slots}
    for slot in record.slots:
        i = slot.instruction
        if type(i).__name__ == "Forward" and i.stage > 0:
            before = type(i)(i.stage - 1, i.micro)
            assert ends[str(before)] <= slot.start
    assert record.timeline().end == record.makespan
    assert len(record.timeline().spans) == len(record.slots)
