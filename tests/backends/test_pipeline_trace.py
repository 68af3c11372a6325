"""A trace of a real step equals its lists, played without tensors; bytes are exact."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti import devices, get_model
from d2lmulti.observe.pipeline_trace import (
    Durations,
    PipelineTrace,
    pipeline_trace,
    play_schedule,
)
from d2lmulti.parallel.pipeline import cut_stages, place_params, train_stages
from d2lmulti.plans import schedules as plans
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardWeight,
    Forward,
    SendActivation,
    stage_ranks,
)

NET = get_model("deep_mlp")


def measure(B, schedule, p, m, chunks=1, **named) -> PipelineTrace:
    rng, make = np.random.default_rng(0), plans.SCHEDULES.get(schedule, schedule)
    places, stages = devices(p, B.name), cut_stages(NET, p * chunks)
    start = [B.array(a) for a in NET.initial(rng)]
    ranks = stage_ranks(make(p, m, chunks))
    stage_params = place_params(start, stages, places, ranks)
    X = B.array(rng.normal(size=(max(m, 7), 1, 28, 28)))
    y = B.array(rng.integers(0, 10, max(m, 7)))
    with pipeline_trace(named.pop("durations", None)) as trace:
        train_stages(
            X, y, stage_params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=m, **named,
        )  # fmt: skip
    return trace


@pytest.mark.parametrize("schedule", plans.SCHEDULES)
def test_a_step_runs_as_its_lists_are_played_and_stores_what_they_say(B, schedule):
    """What the lists take, and how much is live, are formulas in tests/pure."""
    chunks = plans.CHUNKS[schedule] if schedule != "interleaved" else 2
    for p, m in ((1, 2), (2, 6), (4, 4), (3, 2)):
        if p * chunks > len(NET.layers) or (schedule == "interleaved" and m % p):
            continue
        trace = measure(B, schedule, p, m, chunks)
        lists = plans.SCHEDULES[schedule](p, m, chunks)
        played = play_schedule(lists)
        assert trace.spans == played.spans and trace.messages == played.messages
        assert trace.device_peak_live == [live(mine) for mine in lists]


def live(instructions) -> int:
    """Return the largest number of micro-batches between forward and last backward."""
    now = most = 0
    for i in instructions:
        now += isinstance(i, Forward)
        most = max(most, now)
        now -= isinstance(i, (Backward, BackwardWeight))
    return most


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


def test_messages_take_time_and_recomputation_too(reference) -> None:
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

    assert measure(reference, late, 2, 2).makespan == 3 * (2 + 1) + 1
