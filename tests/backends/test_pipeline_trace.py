"""What a pipeline trace says: idle spans and live activations, as the formulas say."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import devices, get_model
from d2lmulti.observe.pipeline_trace import Durations, PipelineTrace, pipeline_trace
from d2lmulti.parallel.pipeline import cut_stages, place_params, train_stages
from d2lmulti.plans import schedules as plans
from d2lmulti.plans.pipeline import SendActivation, stage_ranks

SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved", "zero_bubble", "zb_h2")
NET = get_model("deep_mlp")


def measure(B, schedule, p, m, chunks=1, steps=1, **named) -> PipelineTrace:
    rng, make = np.random.default_rng(0), plans.SCHEDULES.get(schedule, schedule)
    places, stages = devices(p, B.name), cut_stages(NET, p * chunks)
    start = [B.array(a) for a in NET.initial(rng)]
    ranks = stage_ranks(make(p, m, chunks))
    stage_params = place_params(start, stages, places, ranks)
    X = B.array(rng.normal(size=(max(m, 7), 1, 28, 28)))
    y = B.array(rng.integers(0, 10, max(m, 7)))
    with pipeline_trace(named.pop("durations", None)) as trace:
        for _ in range(steps):
            train_stages(
                X, y, stage_params, places, 0.1, stages=stages, schedule=schedule,
                micro_batches=m, **named,
            )  # fmt: skip
    return trace


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 2), (2, 6), (3, 6), (4, 4), (4, 8)])
def test_measured_idle_share_equals_the_formula(reference, p, m) -> None:
    def idle(schedule: str, chunks: int = 1) -> tuple[float, float]:
        trace = measure(reference, schedule, p, m, chunks)
        return trace.idle, p * trace.makespan

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
    for schedule, v in (("zb_h2", 1), ("zb_v", 2)):
        trace = measure(reference, schedule, p, m, v)
        if m >= 2 * p - 1:
            assert trace.longest_span == 3 * m * v
            assert all(trace.span(d) == trace.busy(d) for d in range(p))
        elif p > 1:
            assert trace.longest_span > 3 * m * v


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 6), (4, 3)])
def test_measured_live_activations_equal_the_formula(B, p, m) -> None:
    live = {
        s: measure(B, s, p, m).device_peak_live for s in SCHEDULES if s != "interleaved"
    }
    assert live["zb_h2"] == [min(m, 2 * p - 1)] * p
    assert measure(B, "zb_v", p, m, 2).device_peak_live == [2 * min(m, p)] * p
    assert live["sequential"] == [1] * p
    assert live["gpipe"] == [m] * p
    assert live["1f1b"] == [min(m, p - s) for s in range(p)]
    assert live["zero_bubble"] == [min(m, p)] * p


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (2, 2, 3), (4, 4, 2), (4, 8, 2)])
def test_measured_live_activations_interleaved(B, p, m, v) -> None:
    trace = measure(B, "interleaved", p, m, v)
    assert trace.device_peak_live == [
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


def test_messages_take_time(reference) -> None:
    late = measure(reference, "sequential", 2, 1, durations=Durations(transfer=5))
    assert late.makespan == 2 * 3 + 2 * 5
    again = measure(reference, "sequential", 2, 1, recompute=True)
    assert again.makespan == 2 * (1 + 1 + 2)


def test_a_message_costs_where_it_stands(reference) -> None:
    """Device 0 computes twice before it sends: device 1 begins a slot later."""

    def late(p: int, m: int, v: int):
        lists = [list(mine) for mine in plans.SCHEDULES["gpipe"](p, m, v)]
        lists[0][1:3] = reversed(lists[0][1:3])
        assert isinstance(lists[0][2], SendActivation)
        return lists

    assert measure(reference, "gpipe", 2, 2).makespan == 3 * (2 + 1)
    assert measure(reference, late, 2, 2).makespan == 3 * (2 + 1) + 1
    assert measure(reference, "interleaved", 4, 16, 2).makespan == 105
