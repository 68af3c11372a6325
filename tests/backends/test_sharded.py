"""ZeRO 1, 2 and 3 on k devices equal one device; bytes held and moved are a formula."""

from __future__ import annotations

import shutil
import weakref
from functools import cache, partial

import numpy as np
import pytest
from backends.compare import arrays, assert_all_same_bits, assert_replicas, start

import d2lmulti
from d2lmulti import (
    SGD,
    Adam,
    AdamW,
    gather_shards,
    ledger,
    shard_params,
    train_batch,
    train_shards,
)
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import Layer, Model, make_mlp
from d2lmulti.parallel import sharded as forward_backward

BATCH = 29  # divides by nothing below
MODEL = make_mlp("uneven", (13, 7, 3, 5))
SHAPES = [(13, 7), (7, 3), (3, 5)]
SIZES = [13 * 7 + 7, 7 * 3 + 3, 3 * 5 + 5]  # no number of devices below divides all
WATCHED = ("numpy", "torch")  # whose memory Python's own counts give back at once
TINY = make_mlp("tiny", (2, 1, 2))  # 3 and 4 numbers: on 7 devices, empty parts
OPTIMIZERS = {"momentum": SGD(0.9), "adam": Adam(), "adamw": AdamW(weight_decay=0.1)}
SLOTS = {"momentum": (1, 0), "adam": (2, 2), "adamw": (2, 2)}  # a number; and beside


def run(B, k, zero, optimizer, model=MODEL, steps=10):
    """Train on k devices, without `zero` by `train_batch`; give what there is then."""
    rng = np.random.default_rng(5)
    first = [B.array(p) for p in model.initial(rng)]
    inputs, classes = first[0].shape[0], first[-1].shape[0]
    places = d2lmulti.devices(k, B.name)
    if zero:
        held = shard_params(first, places, model, zero)
        states = [optimizer.init(own) for own in held.parts()]
        step = partial(train_shards, optimizer=optimizer, states=states)
    else:
        held = [d2lmulti.get_params(first, place) for place in places]
        states = [optimizer.init(own) for own in held]
        step = partial(train_batch, model=model, optimizer=optimizer, states=states)
    losses = []
    for _ in range(steps):
        X, y = rng.normal(size=(BATCH, inputs)), rng.integers(0, classes, BATCH)
        with ledger() as moved:
            parts = step(B.array(X), B.array(y), held, places, 0.01)
        losses.append(sum(float(B.numpy(loss)) for loss in parts) / BATCH)
    whole = gather_shards(held) if zero else held
    return arrays(B, whole), losses, held, states, moved


@pytest.fixture(scope="module")
def alone(B):
    """Ten steps on one device with the optimizer of that name."""
    return cache(lambda name, model=MODEL: run(B, 1, None, OPTIMIZERS[name], model)[:2])


def assert_equal(weights, losses, alone):
    (one,), expected = alone
    assert losses == pytest.approx(expected, rel=1e-12)
    assert_replicas(weights, one)


def part(size, k, rank):
    return size // k + (rank < size % k)


@pytest.mark.dealt
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_ten_steps_equal_one_device_and_all_bytes_the_formula(B, alone, zero, name):
    N, last = sum(SIZES), SIZES[-1]
    for k in (1, 2, 3, 4, 7):
        weights, losses, held, states, moved = run(B, k, zero, OPTIMIZERS[name])
        assert_equal(weights, losses, alone(name))
        own = [sum(part(size, k, rank) for size in SIZES) for rank in range(k)]
        slots, beside = SLOTS[name]
        for rank in range(k):
            stored = [
                sum(B.numpy(x).nbytes for x in mine)
                for mine in (held[rank], held.grads[rank], states[rank])
            ]
            params = N if zero < 3 else own[rank]
            grads = N if zero < 2 else own[rank]
            assert stored == [8 * params, 8 * grads, 8 * (slots * own[rank] + beside)]
            # Ring: a rank sends all parts but its own, or but its right neighbor's.
            scattered, gathered = N - own[rank], N - own[(rank + 1) % k]
            if zero == 3:
                gathered = 2 * gathered - (last - part(last, k, (rank + 1) % k))
            assert moved.sent[rank] == 8 * (scattered + gathered)
        passes = {"reduce-scatter": N, "all-gather": N if zero < 3 else 2 * N - last}
        assert moved.by_label == {what: 8 * (k - 1) * n for what, n in passes.items()}
        assert moved.bytes == sum(moved.by_label.values())


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_more_devices_than_numbers_in_a_layer(B, alone, zero):
    weights, losses, held, _, _ = run(B, 7, zero, OPTIMIZERS["adam"], TINY)
    assert_equal(weights, losses, alone("adam", TINY))
    if zero == 3:
        assert [[len(p) for p in mine] for mine in held] == [
            [1, 1], [1, 1], [1, 1], [0, 1], [0, 0], [0, 0], [0, 0],
        ]  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in WATCHED]
)
@pytest.mark.parametrize("zero", [2, 3])
def test_one_layer_is_unsharded_at_a_time(load, monkeypatch, name, zero):
    """Watch all full tensors: gathered weights, leaves, and their gradients."""
    B, alive, counts = load(name), [], []
    attach, gather = B.attach_grad, forward_backward.gather_flat

    def attached(x, add=True):
        attach(x, add)
        if tuple(x.shape) in SHAPES:
            l = SHAPES.index(tuple(x.shape))
            watch(B.grad(x), l)
            if zero == 3:  # with ZeRO 2 it shares the memory of the full parameters
                watch(x, l)

    def gathered(shards, size, group):
        flats = gather(shards, size, group)
        for x in flats:
            watch(x, SIZES.index(size))
        return flats

    def watch(x, l):
        x = x.value if name == "numpy" else x  # its tensors take no weak references
        alive.append((weakref.ref(x), l))
        counts.append(len({l for there, l in alive if there() is not None}))

    monkeypatch.setattr(B, "attach_grad", attached)
    monkeypatch.setattr(forward_backward, "gather_flat", gathered)
    run(B, 2, zero, OPTIMIZERS["momentum"], steps=1)
    assert len(counts) >= 2 * len(SIZES)
    assert max(counts) == 1


def test_a_layer_without_parameters_goes_with_the_one_before(B):
    def double(B, params, X):
        return X * 2

    def network(B, params, X):
        for layer in layers:
            mine, params = params[: layer.params], params[layer.params :]
            X = layer.forward(B, mine, X)
        return X

    empty = Layer("double", 0, double)
    first, *rest = MODEL.layers
    layers = (empty, first, empty, *rest)
    model = Model("with gaps", MODEL.initial, network, network, layers=layers)
    want, losses, *_ = run(B, 1, None, SGD(0.9), model, steps=3)
    got, found, held, _, _ = run(B, 3, 3, SGD(0.9), model, steps=3)
    assert_equal(got, found, (want, losses))
    assert [layer.name for layer in held.flat_params] == [
        layer.name for layer in MODEL.layers
    ]


# -- train(strategy="sharded") ---------------------------------------------------------


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(64, 13)), rng.integers(0, 5, 64)
    return d2lmulti.Dataset("noise", X[:55], y[:55], X[55:], y[55:], tuple("abcde"))


def train(B, data, k, **settings):
    history = d2lmulti.train(
        k, 20, 0.01, dataset=data, model=MODEL, dtype="float64", backend=B.name,
        **{"epochs": 2, **settings},
    )  # fmt: skip
    return history, arrays(B, history.device_params)


@pytest.mark.parametrize(
    ("zero", "optimizer"), [(1, "sgd"), (2, "adamw"), (3, "adam"), (3, "sgd")]
)
def test_a_sharded_checkpoint_goes_on_anywhere(B, data, tmp_path, zero, optimizer):
    sharded = {"strategy": "sharded", "zero": zero, "optimizer": optimizer}
    _, (want,) = train(B, data, 1, optimizer=optimizer)
    straight, bits = train(B, data, 2, **sharded)
    saved = tmp_path / "saved.npz"
    train(B, data, 2, epochs=1, checkpoint=saved, **sharded)
    for k, more in [
        (2, sharded), (3, sharded), (1, sharded),
        (3, {**sharded, "zero": 1 + zero % 3}), (2, {"optimizer": optimizer}),
    ]:  # fmt: skip
        path = shutil.copy(saved, tmp_path / "run.npz")
        history, found = train(B, data, k, checkpoint=path, resume=True, **more)
        assert len(history.losses) == 2
        assert_replicas(found, want)
        if (k, more) == (2, sharded):
            assert history.losses == straight.losses
            assert_all_same_bits(found, bits)


# -- what is refused -------------------------------------------------------------------


def test_what_cannot_be_sharded_is_refused(reference):
    B, places = reference, ["sim:0", "sim:1"]
    params, bn = start(B, MODEL), d2lmulti.get_model("lenet_bn")
    with pytest.raises(InvalidInput, match="lenet_bn"):
        shard_params(start(B, bn), places, bn)
    mixed = [B.array(B.numpy(params[0]).astype("float32")), *params[1:]]
    with pytest.raises(InvalidInput, match="float32 and float64"):
        shard_params(mixed, places, MODEL)
    sharded = shard_params(params, places, MODEL)
    X, y = B.array(np.zeros((4, 13))), B.array(np.zeros(4, "int64"))
    with pytest.raises(InvalidInput, match="state"):
        train_shards(X, y, sharded, places, 0.1, optimizer=SGD(0.9))
