"""Gradient accumulation: a batch in parts is the same step as the whole batch."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_near, assert_replicas, weights
from backends.test_checkpoint import interrupted, same_bits
from backends.test_checkpoint import run as run_saved

from d2lmulti import devices, train
from d2lmulti.models.networks import make_mlp
from d2lmulti.optimizers import SGD, Adam
from d2lmulti.parallel.data import get_params, train_batch
from d2lmulti.parallel.flat_parameters import shard_params
from d2lmulti.parallel.sharded import train_shards

SMALL = make_mlp("small", (784, 24, 10))


def run(B, data, k=1, **settings):
    settings = {"epochs": 2, "lr": 0.02, "model": SMALL, "dtype": "float64", **settings}
    return train(k, 64, dataset=data, backend=B.name, **settings)


CASES = [
    {"k": 1, "accumulate": 4},
    {"k": 1, "accumulate": 22},  # one example in each part of the last batch
    {"k": 3, "accumulate": 5},
    {"k": 2, "accumulate": 3, "bucket_bytes": 2**14},
    {"k": 2, "accumulate": 3, "bucket_bytes": 1, "algorithm": "ring"},
    *({"k": 3, "accumulate": 5, "strategy": "sharded", "zero": z} for z in (1, 2, 3)),
]


@pytest.mark.parametrize("optimizer", ["sgd", Adam(eps=1e-3)], ids=["sgd", "adam"])
def test_parts_of_a_batch_train_like_the_whole(B, digits, optimizer):
    alone = run(B, digits, optimizer=optimizer)
    (expected,) = weights(B, alone)
    for case in CASES if optimizer == "sgd" else CASES[:1]:
        history = run(B, digits, optimizer=optimizer, **case)
        assert history.losses == pytest.approx(alone.losses, rel=1e-12)
        assert_replicas(weights(B, history), expected)


@pytest.mark.parametrize(
    ("zero", "whole", "again"), [(0, 2, 0), (1, 2, 0), (2, 1, 1), (3, 0, 3)]
)
def test_bytes_of_a_step_in_parts(reference, digits, zero, whole, again):
    """Of N numbers, some move once and some for every part.

    ZeRO 3 gathers the last layer, of `last` numbers, once a part.
    """
    N, last, steps = 784 * 24 + 24 + 250, 250, 3
    for parts in (1, 11):
        settings = {"strategy": "sharded", "zero": zero} if zero else {}
        history = run(reference, digits, 2, epochs=1, accumulate=parts, **settings)
        numbers = (whole + again * parts) * N - (parts * last if zero == 3 else 0)
        assert history.bytes_moved == 8 * steps * numbers
        assert history.settings["accumulate"] == parts


def test_with_normalization_the_parts_are_not_the_whole(reference, digits):
    """Each part has statistics of its own, as each of so many devices has."""
    few = digits.first(64)
    settings = {"model": "lenet_bn", "epochs": 1}
    alone, parts, devices = (
        weights(reference, run(reference, few, **settings, **more))[0][:-4]
        for more in ({}, {"accumulate": 4}, {"k": 4})
    )
    apart = [np.abs(p - q).max() for p, q in zip(parts, alone, strict=True)]
    assert max(apart) > 1e-4
    assert_near(parts, devices)


def test_a_run_in_parts_goes_on_bit_for_bit(framework, digits, tmp_path, monkeypatch):
    path, more = tmp_path / "run.npz", {"accumulate": 3}
    interrupted(monkeypatch, framework, digits, path, 4, 2, **more)
    again = run_saved(framework, digits, 2, checkpoint=path, resume=True, **more)
    assert same_bits(framework, again, run_saved(framework, digits, 2, **more))


def test_losses_come_device_by_device_so_processes_add_them_up_alike(reference):
    B, places = reference, devices(2)
    model = make_mlp("zeros", (4, 10))
    zeros = [B.array(0 * p) for p in model.initial(np.random.default_rng(0))]
    X, y = B.array(np.ones((9, 4))), B.array(np.zeros(9, "int64"))
    sharded = shard_params(zeros, places, model, 1)
    losses = train_shards(X, y, sharded, places, 0.1, accumulate=3)
    of_replicas = train_batch(
        X, y, [get_params(zeros, place) for place in places], places, 0.1,
        accumulate=3, model=model, optimizer=SGD(), states=[[], []],
    )  # fmt: skip
    for found in (losses, of_replicas):  # a loss is its examples' number times log 10
        counts = [float(B.numpy(loss)) / np.log(10) for loss in found]
        assert counts == pytest.approx([2, 2, 1, 2, 1, 1])
