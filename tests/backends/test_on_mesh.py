"""All ways at once: the transformer on any mesh trains like one device."""

from __future__ import annotations

import itertools
import random
from functools import cache

import numpy as np
import pytest
from backends.compare import arrays, assert_replicas, start, train_alone

import d2lmulti
from d2lmulti import SGD, Adam, ledger
from d2lmulti.backends import framework_names
from d2lmulti.comm.mesh import Mesh
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import make_mlp
from d2lmulti.models.transformer import make_transformer
from d2lmulti.parallel.mesh import gather_from_mesh, place_on_mesh, train_on_mesh
from d2lmulti_book.notebook import is_installed

# Twelve heads, 48 hidden units and 24 characters: 1, 2, 3, 4, 6 and 12 divide them.
TOKENS = 5
MODEL = make_transformer("small", 24, TOKENS, 12, heads=12, blocks=1)
MIXTURE = make_transformer("mixture", 24, TOKENS, 12, heads=12, blocks=1, experts=6)
CUTS = {size for size in range(1, 17) if 12 % size == 0}
LAYERS, LR = 4, 0.1
OPTIMIZERS = {"momentum": SGD(0.9), "adam": Adam(eps=1e-3)}


def batches(examples, steps):
    rng = np.random.default_rng(examples)
    shape = examples, TOKENS
    return [
        (rng.integers(0, 24, shape), rng.integers(0, 24, shape)) for _ in range(steps)
    ]


@pytest.fixture(scope="module")
def alone(B):
    """One device, with the whole model, for examples, optimizer, steps."""

    @cache
    def run(examples, optimizer, steps, model=MODEL):
        first = model.initial(np.random.default_rng(1))
        how = batches(examples, steps), LR, OPTIMIZERS[optimizer]
        return train_alone(B, model, first, *how)

    return run


def on_mesh(
    B, mesh, examples, optimizer="momentum", steps=2, model=MODEL, zero=0, **how
):
    places = d2lmulti.devices(mesh.size, B.name)
    stages = how.pop("stages", None)
    params = start(B, model, seed=1)
    placed = place_on_mesh(params, places, mesh, model, stages=stages, zero=zero)
    learner = OPTIMIZERS[optimizer]
    states, losses = [learner.init(mine) for mine in placed.parts()], []
    for X, y in batches(examples, steps):
        parts = train_on_mesh(
            B.array(X), B.array(y), placed, places, LR, optimizer=learner,
            states=states, **how,
        )  # fmt: skip
        losses.append(sum(float(B.numpy(part)) for part in parts))
    return losses, arrays(B, gather_from_mesh(placed))


def check(got, expected):
    """Compare losses, and what every rank puts together from its own replica."""
    assert got[0] == pytest.approx(expected[0], rel=1e-12)
    assert_replicas(got[1], expected[1])


@pytest.mark.parametrize("zero", [0, 1])
def test_all_corners_of_a_cube_train_like_one_device(B, alone, zero):
    for d, t, p in itertools.product((1, 2)[zero:], (1, 2), (1, 2)):
        mesh = Mesh(data=d, tensor=t, pipeline=p)
        got = on_mesh(B, mesh, 5, "adam", zero=zero, micro_batches=2)
        check(got, alone(5, "adam", 2))


def drawn(seed):
    """Draw a mesh of up to 16 devices, and how to train on it."""
    rng, most = random.Random(seed), 8 if seed % 4 else 16  # few of the large ones
    while True:
        axes = {
            "data": rng.randint(1, 4),
            "tensor": rng.choice(sorted(CUTS)),
            "pipeline": rng.randint(1, LAYERS),
            "sequence": rng.randint(1, TOKENS),
            "expert": rng.choice([1, 2, 3, 6]),
        }
        if 4 <= np.prod([*axes.values()]) <= most:
            break
    p, m = axes["pipeline"], rng.randint(1, 2)
    schedules = ["sequential", "gpipe", "1f1b"] + ["interleaved"] * (p in (1, 2))
    schedule = rng.choice(schedules)
    order = rng.sample(sorted(axes), 5)  # which are neighbors
    return Mesh(**{axis: axes[axis] for axis in order}), {
        "model": MIXTURE if axes["expert"] > 1 or seed % 8 == 0 else MODEL,
        "examples": axes["data"] * axes["expert"] * m + rng.randint(0, 2),
        "optimizer": rng.choice(sorted(OPTIMIZERS)),
        "schedule": schedule,
        "stages": 2 * p if schedule == "interleaved" else None,
        "micro_batches": m,
        "algorithm": rng.choice(["star", "ring", "tree"]),
        "zero": rng.randint(0, 1),
    }


MESHES = [drawn(seed) for seed in range(40)]


def test_random_meshes_train_like_one_device(B, alone):
    names = [name for name in framework_names() if is_installed(name)]
    mine = MESHES[:: 4 if names else 1]  # on NumPy; and each on one framework
    if B.name in names:
        mine = MESHES[names.index(B.name) :: len(names)]
    for mesh, how in mine:
        got = on_mesh(B, mesh, steps=1, **how)
        check(got, alone(how["examples"], how["optimizer"], 1, how["model"]))


def test_each_axis_moves_what_its_formula_says(B):
    """Per step: gradients along data, f and g along tensor, activations on."""
    mesh = Mesh(data=2, tensor=3, pipeline=2)
    places = d2lmulti.devices(mesh.size, B.name)
    placed = place_on_mesh(start(B, MODEL, seed=1), places, mesh, MODEL)
    ((X, y),) = batches(4, 1)
    with ledger() as moved:
        train_on_mesh(
            B.array(X), B.array(y), placed, places, LR, micro_batches=2,
            algorithm="ring",
        )  # fmt: skip
    bytes_along = dict.fromkeys(mesh.axes, 0)
    for (s, t), count in moved.links.items():
        (axis,) = {
            axis for axis in mesh.axes
            if mesh.coordinates(s)[axis] != mesh.coordinates(t)[axis]
        }  # fmt: skip
        bytes_along[axis] += count
    held = sum(int(np.prod(p.shape)) for mine in placed for p in mine)
    tokens, width = 4 * TOKENS, 12
    # A ring of k moves 2 (k - 1) vectors; its numbers are those of one replica.
    assert bytes_along["data"] == 8 * 2 * (2 - 1) * held // 2
    # Along tensor: the embedding's sum; f back and g forward in the attention, the MLP
    # and the head's f; the loss's maximum and two sums a target.
    sums = tokens * width * (1 + 2 + 2 + 1) + 3 * tokens
    assert bytes_along["tensor"] == 8 * 2 * (3 - 1) * sums
    # Along pipeline, each rank sends all of the stream, once on and once back.
    assert bytes_along["pipeline"] == 8 * 2 * tokens * width * 3


@pytest.mark.parametrize(
    ("axes", "how", "says"),
    [
        ({"tensor": 5}, {}, "5 does not divide its 24 characters"),
        ({"pipeline": 5}, {}, "cannot cut the 4 layers .* 5 stages"),
        ({"pipeline": 2}, {"stages": 3}, "use a multiple of 2"),
        ({"expert": 2}, {}, "no layer is split along expert, because it has no exp"),
        ({"expert": 4}, {"model": MIXTURE}, "4 does not divide its 6 experts"),
        ({"sequence": 6}, {}, "5 tokens over 6 ranks"),
        ({"data": 2}, {"zero": 2}, "from 0 to 1 as zero, got 2"),
        ({"pipeline": 2}, {"schedule": "zero_bubble"}, "whole backward passes"),
        ({"data": 4}, {"micro_batches": 2}, "4 replicas of 2 micro-batches .* least 8"),
    ],
)
def test_what_does_not_fit_is_refused(reference, axes, how, says):
    with pytest.raises(InvalidInput, match=says):
        on_mesh(reference, Mesh(**axes), 5, **how)


def test_a_perceptron_goes_on_a_mesh_too_and_a_model_without_split_form_does_not(B):
    model = make_mlp("deep", (6, 4, 8, 4, 8, 4))
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(7, 6)), rng.integers(0, 4, 7)
    wholes = []
    for axes in ({"data": 1}, {"tensor": 2, "data": 3, "pipeline": 2}):
        mesh = Mesh(**axes)
        places = d2lmulti.devices(mesh.size, B.name)
        placed = place_on_mesh(start(B, model, seed=1), places, mesh, model)
        train_on_mesh(B.array(X), B.array(y), placed, places, LR, micro_batches=2)
        wholes.append(arrays(B, gather_from_mesh(placed)))
    ((one,), many) = wholes
    assert_replicas(many, one)
    with pytest.raises(InvalidInput, match="along sequence, because it has no tokens"):
        on_mesh(B, Mesh(sequence=2), 5, model=model)
    with pytest.raises(InvalidInput, match="to split by layers, got lenet_bn"):
        place_on_mesh(start(B, model, seed=1), ["cpu"], Mesh(data=1), "lenet_bn")
