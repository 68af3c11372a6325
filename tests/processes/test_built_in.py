"""What ships with the frameworks takes our steps, and on uneven shards it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from processes.staying import Staying, started_once

from d2lmulti import devices, get_params, train_batch
from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.models.networks import make_mlp
from d2lmulti.processes.process_group import started

MODEL = make_mlp("small", (12, 7, 3))
START = MODEL.initial(np.random.default_rng(0))
RNG = np.random.default_rng(1)
BATCHES = [(RNG.normal(size=(n, 12)), RNG.integers(0, 3, n)) for n in (8, 8, 8, 7)]
LR = 0.125  # and batches of 8: numbers that MXNet's float32 holds exactly

History = list[list[np.ndarray]]  # step, parameter


def ours(B: Backend, places: Sequence[Any]) -> list[History]:
    """Return the weights of every local replica after every step."""
    replicas = [get_params([B.array(p) for p in START], place) for place in places]
    histories: list[History] = [[] for _ in places]
    for X, y in BATCHES:
        train_batch(B.array(X), B.array(y), replicas, places, LR, model=MODEL)
        for history, params in zip(histories, replicas, strict=True):
            history.append([B.numpy(p) for p in params])
    return histories


def ddp(whole: bool, rank: int) -> History:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    net = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    for p, value in zip(net.parameters(), START, strict=True):
        p.data = torch.tensor(value.T).contiguous()
    both = nn.parallel.DistributedDataParallel(net)
    sgd, history = torch.optim.SGD(both.parameters(), LR), []
    for X, y in BATCHES:
        shard = slice(rank, None, 2)
        out, mine = both(torch.tensor(X[shard])), torch.tensor(y[shard])
        share = 2 * len(mine) / len(y) if whole else 1
        sgd.zero_grad()
        (cross_entropy(out, mine) * share).backward()
        sgd.step()
        history.append([p.detach().numpy().T.copy() for p in both.parameters()])
    return history


def paddle_parallel(whole: bool, rank: int) -> History:
    import paddle
    from paddle import nn
    from paddle.nn.functional import cross_entropy

    net = nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3))
    net.to(dtype="float64")
    for p, value in zip(net.parameters(), START, strict=True):
        p.set_value(value)
    both = paddle.DataParallel(net)
    sgd, history = paddle.optimizer.SGD(LR, both.parameters()), []
    for X, y in BATCHES:
        shard = slice(rank, None, 2)
        out, mine = both(paddle.to_tensor(X[shard])), paddle.to_tensor(y[shard])
        share = 2 * len(mine) / len(y) if whole else 1
        (cross_entropy(out, mine) * share).backward()
        sgd.step()
        sgd.clear_grad()
        history.append([p.numpy() for p in both.parameters()])
    return history


def worker(train: Callable[[bool, int], History]) -> tuple[History, History, History]:
    group = started()
    assert group is not None
    (rank,) = group.local_ranks
    (mine,) = ours(get_backend(), ["cpu"])
    return mine, train(False, rank), train(True, rank)


def gluon(whole: bool, kvstore: str) -> list[History]:
    import mxnet as mx
    from mxnet import autograd
    from mxnet import gluon as g

    places = [mx.cpu(0), mx.cpu(1)]
    net, loss = g.nn.Sequential(), g.loss.SoftmaxCrossEntropyLoss()
    net.add(g.nn.Dense(7, activation="relu", in_units=12), g.nn.Dense(3, in_units=7))
    net.cast("float64")
    net.initialize("zeros", ctx=places)
    params = net.collect_params()
    for p, value in zip(params.values(), START, strict=True):
        p.set_data(mx.np.array(value.T, dtype="float64"))
    trainer = g.Trainer(params, "sgd", {"learning_rate": LR}, kvstore=kvstore)
    histories: list[History] = [[] for _ in places]
    for X, y in BATCHES:
        arrays = (mx.np.array(a, dtype=a.dtype) for a in (X, y))
        shards = [g.utils.split_and_load(a, places, even_split=False) for a in arrays]
        with autograd.record():
            losses = [loss(net(a), b) for a, b in zip(*shards, strict=True)]
            losses = [l.sum() / len(y) if whole else l.mean() for l in losses]
        autograd.backward(losses)
        trainer.step(1 if whole else 2)
        for history, place in zip(histories, places, strict=True):
            history.append([p.data(place).asnumpy().T for p in params.values()])
    return histories


def off(ours: History, theirs: History, steps: slice) -> float:
    return max(
        np.abs(a - b).max() / np.abs(b).max()
        for one, other in zip(theirs[steps], ours[steps], strict=True)
        for a, b in zip(one, other, strict=True)
    )


def check(reference: list[History], averaged: History, whole: History) -> None:
    """Even shards: equal. The last batch, 4 and 3: equal by the whole batch alone."""
    for replica in reference:
        assert off(replica, averaged, slice(0, 3)) < 1e-12
        assert off(replica, averaged, slice(3, 4)) > 1e-3
        assert off(replica, whole, slice(0, 4)) < 1e-12


@pytest.mark.parametrize(
    ("name", "train"),
    [
        pytest.param(name, train, marks=started_once(name, name, 2))
        for name, train in [("torch", ddp), ("paddle", paddle_parallel)]
    ],
)
def test_two_processes_take_our_steps(
    load: Callable[[str], Backend], staying: Staying, name: str, train: Any
) -> None:
    B = load(name)
    reference = ours(B, devices(2, name, simulate=True))
    for mine, averaged, whole in staying(name, name, 2)(worker, train):
        assert off(reference[0], mine, slice(0, 4)) < 1e-12
        check(reference, averaged, whole)


@pytest.mark.mxnet
@pytest.mark.parametrize("kvstore", ["device", "local"])
def test_gluon_takes_our_steps(load: Callable[[str], Backend], kvstore: str) -> None:
    B = load("mxnet")
    reference = ours(B, devices(2, "mxnet", simulate=True))
    for averaged, whole in zip(
        gluon(False, kvstore), gluon(True, kvstore), strict=True
    ):
        check(reference, averaged, whole)
