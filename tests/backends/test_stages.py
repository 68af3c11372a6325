"""Cutting a network into stages, placing them, and what training them refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from backends.compare import arrays, assert_all_same_bits, start
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti import devices, get_model
from d2lmulti.errors import InvalidInput, PlanError
from d2lmulti.models.networks import Layer, Model, lenet
from d2lmulti.parallel.pipeline import (
    cut_stages,
    gather_stages,
    place_params,
    train_stages,
)
from d2lmulti.plans.schedules import SCHEDULES

LENET, DEEP = get_model("lenet"), get_model("deep_mlp")


def names(stages):
    return [[layer.name for layer in stage.layers] for stage in stages]


def test_by_layers():
    assert names(cut_stages(LENET, 3)) == [
        ["convolution 1", "convolution 2"],
        ["dense 1"],
        ["dense 2"],
    ]
    assert [(s.first, s.last) for s in cut_stages(LENET, 2)] == [(0, 4), (4, 8)]
    assert names(cut_stages(LENET, 1))[0] == names(cut_stages(LENET, 2))[0] + [
        "dense 1",
        "dense 2",
    ]


def layered(count):
    layer = Layer("layer", 1, lambda B, params, X: X * params[0])
    return Model("toy", lambda rng: [], lenet, lenet, layers=(layer,) * count)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.data())
def test_by_cost_no_cut_is_better(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    cut = cut_stages(layered(len(costs)), stages, by="cost", costs=costs)

    def dearest(edges):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise(edges))

    inner = itertools.combinations(range(1, len(costs)), stages - 1)
    best = min(dearest([0, *some, len(costs)]) for some in inner)
    edges = [0, *(stage.last for stage in cut)]
    assert dearest(edges) == best
    assert len(edges) == stages + 1 and edges[-1] == len(costs)
    assert all(a < b for a, b in itertools.pairwise(edges))


def test_placing_copies_and_gathering_brings_back(B):
    params, stages, places = start(B, DEEP), cut_stages(DEEP, 4), devices(2, B.name)
    placed = place_params(params, stages, places)
    assert [len(mine) for mine in placed] == [4, 4, 4, 4]
    gathered = gather_stages(placed)
    assert_all_same_bits(arrays(B, [gathered]), arrays(B, [params]))
    B.write_(placed[0][0], 0, 1, B.array([99.0]))
    assert B.numpy(params[0]).flat[0] != 99 and B.numpy(gathered[0]).flat[0] != 99
    with pytest.raises(InvalidInput, match="expected the 16 parameters.*got 3"):
        place_params(params[:3], stages, places)


def ready(B):
    cut, places = cut_stages(DEEP, 2), devices(2, B.name)
    X, y = B.array(np.ones((5, 1, 28, 28))), B.array(np.zeros(5, "int64"))
    return X, y, place_params(start(B, DEEP), cut, places), places, cut


def test_labels_or_velocities_that_are_missing_are_refused(reference):
    X, y, params, places, cut = ready(reference)
    with pytest.raises(InvalidInput, match="same number of examples"):
        train_stages(X, y[:4], params, places, 0.1, stages=cut)
    with pytest.raises(InvalidInput, match="for 2 stages"):
        train_stages(X, y, params, places, 0.1, stages=cut, states=[[]])


def test_a_schedule_of_ones_own(reference):
    B = reference
    X, y, params, places, cut = ready(B)

    def broken(p, m, v):
        lists = SCHEDULES["gpipe"](p, m, v)
        lists[1] = lists[1][1:] + lists[1][:1]
        return lists

    with pytest.raises(PlanError, match="device|deadlock"):
        train_stages(X, y, params, places, 0.1, stages=cut, schedule=broken)
    losses = train_stages(
        X, y, params, places, 0.1, stages=cut, schedule=SCHEDULES["gpipe"]
    )
    assert len(losses) == 4
