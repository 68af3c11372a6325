"""D2L's own functions beside ours, on equal input (the package d2l, version 1)."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_same_bits

from d2lmulti import (
    SGD,
    devices,
    evaluate,
    get_model,
    get_params,
    split_batch,
    train_batch,
    try_all_gpus,
    try_gpu,
)

WIDTHS = (784, 256, 10)  # of the model "mlp"


@pytest.fixture(
    params=[pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("mxnet", "torch")]
)
def d2l_and_ours(request, load):
    """D2L's module for a framework, and our backend for it."""
    return request.getfixturevalue(f"d2l_{request.param}"), load(request.param)


def close(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-12) -> bool:
    return a.shape == b.shape and np.abs(a - b).max() <= tolerance * np.abs(b).max()


# -- devices ---------------------------------------------------------------------------


def test_try_gpu_gives_the_same_device(d2l_and_ours):
    d2l, B = d2l_and_ours
    for i in (0, 1, 97):
        assert try_gpu(i, B.name) == d2l.try_gpu(i)


def test_try_all_gpus_gives_the_same_gpus_and_never_an_empty_list(d2l_and_ours):
    d2l, B = d2l_and_ours
    theirs = d2l.try_all_gpus()
    ours = try_all_gpus(B.name)
    # D2L's docstring promises [cpu(),] without a GPU; its code returns [].
    assert ours == (theirs or [B.native("cpu")])


# -- split_batch -----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(8, 1), (8, 2), (12, 3), (12, 4), (7, 7)])
def test_even_batches_are_split_alike(d2l_mxnet, load, rng, n, k):
    B = load("mxnet")
    X, y = B.array(rng.normal(size=(n, 2, 3))), B.array(rng.integers(0, 10, n))
    theirs = d2l_mxnet.split_batch(X, y, [B.native("cpu")] * k)
    ours = split_batch(X, y, [f"sim:{i}" for i in range(k)])
    for their_shards, our_shards in zip(theirs, ours, strict=True):
        for their_shard, our_shard in zip(their_shards, our_shards, strict=True):
            assert_same_bits(B.numpy(their_shard), B.numpy(our_shard))


def test_an_uneven_batch_is_refused_by_d2l_and_kept_whole_here(d2l_mxnet, load, rng):
    B = load("mxnet")
    X, y = B.array(rng.normal(size=(8, 2))), B.array(np.arange(8))
    with pytest.raises(ValueError, match="cannot be evenly split into 3 slices"):
        d2l_mxnet.split_batch(X, y, [B.native("cpu")] * 3)
    _, shards = split_batch(X, y, ["sim:0", "sim:1", "sim:2"])
    assert [B.numpy(s).tolist() for s in shards] == [[0, 1, 2], [3, 4, 5], [6, 7]]


# -- the optimizer, the step, the evaluation -------------------------------------------


def test_sgd_takes_the_same_step(d2l_and_ours, rng):
    d2l, B = d2l_and_ours
    after = []
    start = [rng.normal(size=(3, 2)), rng.normal(size=5)]
    for step in (d2l.sgd, lambda p, lr, n: SGD().step_(p, [], lr, n)):
        params = get_params([B.array(p) for p in start], "cpu")
        for _ in range(3):
            for p in params:
                B.clear_grad_(p)
            with B.record():
                losses = [p * p * p for p in params]
            B.backward(losses)
            step(params, 0.1, 7)
        after.append([B.numpy(p) for p in params])
    for theirs, ours in zip(*after, strict=True):
        assert close(ours, theirs)


def gluon_perceptron(B, start, places):
    """The model "mlp" as a Gluon network with these weights on every device."""
    from mxnet import init
    from mxnet.gluon import nn

    net = nn.Sequential()
    net.add(nn.Flatten())
    for inputs, outputs in zip(WIDTHS[:-1], WIDTHS[1:], strict=True):
        act = "relu" if outputs != WIDTHS[-1] else None
        net.add(nn.Dense(outputs, act, in_units=inputs, dtype="float64"))
    net.initialize(init.Zero(), ctx=places)  # the default knows float32 only
    for p, value in zip(net.collect_params().values(), start, strict=True):
        p.set_data(B.array(value.T.copy()))  # Gluon keeps (out, in)
    return net


def test_three_steps_on_two_devices_equal_d2ls(d2l_mxnet, load, rng):
    """D2L's train_batch_ch13 with Gluon's trainer, beside our train_batch."""
    from mxnet import cpu, gluon

    B, model = load("mxnet"), get_model("mlp")
    start = model.initial(rng)
    places = [cpu(0), cpu(1)]
    net = gluon_perceptron(B, start, places)
    # MXNet's fused step holds its settings in float32: take some without rounding.
    settings = {"learning_rate": 0.125, "momentum": 0.75}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    ours = [get_params([B.array(p) for p in start], d) for d in devices(2, "mxnet")]
    optimizer = SGD(0.75)
    states = [optimizer.init(params) for params in ours]
    for _ in range(3):
        X = B.array(rng.normal(size=(8, 1, 28, 28)))
        y = B.array(rng.integers(0, 10, 8))
        their_loss, _ = d2l_mxnet.train_batch_ch13(net, X, y, loss, trainer, places)
        parts = train_batch(
            X, y, ours, devices(2, "mxnet"), 0.125,
            model=model, optimizer=optimizer, states=states,
        )  # fmt: skip
        assert sum(float(B.numpy(p)) for p in parts) == pytest.approx(their_loss, 1e-12)
    for i, p in enumerate(net.collect_params().values()):
        for rank, theirs in enumerate(p.list_data()):
            assert close(B.numpy(ours[rank][i]), B.numpy(theirs).T)

    X, y = rng.normal(size=(20, 1, 28, 28)), rng.integers(0, 10, 20)
    accuracy = d2l_mxnet.evaluate_accuracy_gpus(net, [(B.array(X), B.array(y))])
    assert evaluate(ours, X, y, devices(2, "mxnet"), model=model) == accuracy


def test_three_devices_equal_d2l_on_one(d2l_torch, load, rng):
    """D2L's train_batch_ch13 for PyTorch on one device, beside ours on three."""
    import torch

    B, model = load("torch"), get_model("mlp")
    start = model.initial(rng)
    net = torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(784, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    ).double()
    with torch.no_grad():
        for p, value in zip(net.parameters(), start, strict=True):
            p.copy_(torch.tensor(value.T))  # PyTorch keeps (out, in)
    n = 8
    # D2L sums the losses and leaves 1/n to the learning rate.
    trainer = torch.optim.SGD(net.parameters(), lr=0.1 / n, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss(reduction="none")

    places, optimizer = devices(3, "torch"), SGD(0.9)
    ours = [get_params([B.array(p) for p in start], place) for place in places]
    states = [optimizer.init(params) for params in ours]
    for _ in range(3):
        X = B.array(rng.normal(size=(n, 1, 28, 28)))
        y = B.array(rng.integers(0, 10, n))
        theirs, _ = d2l_torch.train_batch_ch13(
            net, X, y, loss, trainer, [torch.device("cpu")]
        )
        parts = train_batch(
            X, y, ours, places, 0.1, model=model, optimizer=optimizer, states=states
        )
        total = sum(float(B.numpy(part)) for part in parts)
        assert total == pytest.approx(theirs.item(), rel=1e-12)
    for params in ours:
        for p, theirs in zip(params, net.parameters(), strict=True):
            assert close(B.numpy(p), B.numpy(theirs).T)
