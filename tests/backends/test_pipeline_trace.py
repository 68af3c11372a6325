"""A trace of a real step equals its lists, played without tensors; bytes are exact.

On PyTorch, what a stage holds is seen from outside too, by weak references.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import numpy as np
import pytest
from backends.compare import start

from d2lmulti import devices, get_model
from d2lmulti.events import observe
from d2lmulti.models.networks import Layer, Model
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


def measure(B, schedule, p, m, chunks=1, model=NET, trace=None, **named):
    """Trace one step of `m` micro-batches on `p` devices."""
    rng, make = np.random.default_rng(0), plans.SCHEDULES.get(schedule, schedule)
    places, stages = devices(p, B.name), cut_stages(model, p * chunks)
    ranks = stage_ranks(make(p, m, chunks))
    params = place_params(start(B, model), stages, places, ranks)
    X = B.array(rng.normal(size=(max(m, 7), 1, 28, 28)))
    y = B.array(rng.integers(0, 10, max(m, 7)))
    watching = observe(trace) if trace else nullcontext()
    with pipeline_trace(named.pop("durations", None)) as own, watching:
        train_stages(
            X, y, params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=m, **named,
        )  # fmt: skip
    return trace or own


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
        work = 3 * m * chunks  # of each device: one slot forward and two backward
        assert trace.idle == p * (trace.makespan - work)
        spans = [trace.span(d) for d in range(p)]
        assert max(spans) == trace.longest_span <= trace.makespan
        if schedule in ("zb_h2", "zb_v") and m >= 2 * p - 1:
            assert spans == [work] * p


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


# -- seen from outside --------------------------------------------------------------


def watched(outputs: list[list[weakref.ref]]) -> Model:
    """The network, whose layers leave a weak reference to each output's memory."""

    def watch(number: int, layer: Layer) -> Layer:
        def forward(B, params, X):
            H = layer.forward(B, params, X)
            outputs[number].append(weakref.ref(H.untyped_storage()))
            return H

        return layer._replace(forward=forward)

    layers = tuple(watch(i, layer) for i, layer in enumerate(NET.layers))
    return NET._replace(layers=layers)


class Watch(PipelineTrace):
    """Counts, whenever a stage's holdings change, the first outputs that still live."""

    def __init__(self, outputs: list[list[weakref.ref]]) -> None:
        super().__init__()
        self.outputs, self.alive = outputs, []

    def on_stored(self, device, stage, micro_batches, nbytes):
        super().on_stored(device, stage, micro_batches, nbytes)
        first = self.outputs[stage * len(self.outputs) // self.stages]
        alive = sum(ref() is not None for ref in first)
        self.alive.append((stage, alive, micro_batches))


@pytest.mark.torch
@pytest.mark.parametrize("schedule", ["sequential", "gpipe", "1f1b", "zero_bubble"])
def test_live_tensors_are_those_that_are_counted(load, schedule) -> None:
    p, outputs = 4, [[] for _ in NET.layers]
    trace = measure(
        load("torch"), schedule, p, 6, model=watched(outputs), trace=Watch(outputs)
    )
    peak = [max(alive for s, alive, _ in trace.alive if s == i) for i in range(p)]
    assert peak == trace.device_peak_live
    for _, alive, counted in trace.alive:
        assert alive == counted
    assert not any(ref() is not None for refs in outputs for ref in refs)


@pytest.mark.torch
def test_recomputation_lets_go_of_all_but_the_inputs(load) -> None:
    m, outputs = 6, [[] for _ in NET.layers]
    trace = measure(
        load("torch"), "gpipe", 2, m, model=watched(outputs), trace=Watch(outputs),
        recompute=True,
    )  # fmt: skip
    assert trace.device_peak_live == [m, m]
    assert max(alive for _, alive, _ in trace.alive) == 1
