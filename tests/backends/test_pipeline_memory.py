"""On PyTorch, what a stage holds is seen from outside too, by weak references."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from d2lmulti import devices, get_model
from d2lmulti.events import observe
from d2lmulti.models.networks import Layer, Model
from d2lmulti.observe.pipeline_trace import PipelineTrace
from d2lmulti.parallel.pipeline import cut_stages, place_params, train_stages

MLP = get_model("deep_mlp")


def watched(outputs: list[list[weakref.ref]]) -> Model:
    """deep_mlp, whose layers leave a weak reference to each output and its memory."""

    def watch(number: int, layer: Layer) -> Layer:
        def forward(B, params, X):
            H = layer.forward(B, params, X)
            outputs[number].append(weakref.ref(H.untyped_storage()))
            return H

        return layer._replace(forward=forward)

    layers = tuple(watch(i, layer) for i, layer in enumerate(MLP.layers))
    return MLP._replace(layers=layers)


class Watch(PipelineTrace):
    """Counts, whenever a stage's holdings change, the first outputs that still live."""

    def on_stored(self, device, stage, micro_batches, nbytes):
        super().on_stored(device, stage, micro_batches, nbytes)
        first = self.outputs[stage * len(self.outputs) // self.stages]
        alive = sum(ref() is not None for ref in first)
        self.alive.append((stage, alive, micro_batches))


def watched_step(load, p: int, m: int, schedule: str, recompute: bool) -> Watch:
    """Take a step of `m` examples and micro-batches on `p` stages of PyTorch."""
    B, rng = load("torch"), np.random.default_rng(0)
    outputs: list[list[weakref.ref]] = [[] for _ in MLP.layers]
    model, places, trace = watched(outputs), devices(p, "torch"), Watch()
    trace.outputs, trace.alive = outputs, []
    stages = cut_stages(model, p)
    params = place_params([B.array(a) for a in model.initial(rng)], stages, places)
    X, y = B.array(rng.normal(size=(m, 1, 28, 28))), B.array(np.arange(m))
    with observe(trace):
        train_stages(
            X, y, params, places, 0.1, stages=stages, schedule=schedule,
            micro_batches=m, recompute=recompute,
        )  # fmt: skip
    # Here, where parameters, stages and batch are still held.
    trace.left = [ref for mine in outputs for ref in mine if ref() is not None]
    return trace


@pytest.mark.torch
@pytest.mark.parametrize("schedule", ["sequential", "gpipe", "1f1b", "zero_bubble"])
def test_live_tensors_are_those_that_are_counted(load, schedule) -> None:
    p = 4
    trace = watched_step(load, p, 6, schedule, recompute=False)
    peak = [max(alive for s, alive, _ in trace.alive if s == i) for i in range(p)]
    assert peak == trace.device_peak_live
    for _, alive, counted in trace.alive:
        assert alive == counted
    assert not trace.left


@pytest.mark.torch
def test_recomputation_lets_go_of_all_but_the_inputs(load) -> None:
    m = 6
    trace = watched_step(load, 2, m, "gpipe", recompute=True)
    assert trace.device_peak_live == [m, m]
    assert max(alive for _, alive, _ in trace.alive) == 1
