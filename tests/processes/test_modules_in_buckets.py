"""Buckets take a user's own module, and give what DDP and DataParallel give."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from processes.modules import (
    NAMES,
    beside_the_frameworks_own,
    clear,
    gradients,
    loss,
    make_module,
    shard,
    used,
)
from processes.staying import started_once

from d2lmulti.errors import InvalidInput
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.processes.launcher import Ranks

PARAMETERS = {name: {2 * i, 2 * i + 1} for i, name in enumerate(NAMES)}


@pytest.fixture(
    params=[pytest.param(n, marks=started_once(n, n, 2)) for n in ("torch", "paddle")]
)
def framework(request, load, monkeypatch):
    load(request.param)
    monkeypatch.setenv("D2LMULTI_BACKEND", request.param)
    return request.param


def close(a, b):
    if a is None or b is None:
        return a is b
    return np.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 10**6])
@pytest.mark.parametrize("op", ["mean", "sum"])
def test_two_replicas_in_one_process(framework, bucket_bytes, op):
    alone = []
    for rank in range(2):
        net = make_module(framework)
        clear(framework, net)
        loss(net, shard(rank), True).backward()
        alone.append([np.zeros(1) if g is None else g for g in gradients(net)])
    replicas = [make_module(framework) for _ in range(2)]
    for net in replicas:
        clear(framework, net)
    params = [used(net) for net in replicas]
    with reduce_in_buckets(params, bucket_bytes, "star", op=op) as buckets:
        loss(replicas[0], shard(0), True).backward()
        loss(replicas[1], shard(1), True).backward()
    assert {i for bucket in buckets for i in bucket} == {0, 1, 4, 5, 6, 7}
    for net in replicas:
        for i, got in enumerate(gradients(net)):
            if i in PARAMETERS["frozen"] | PARAMETERS["unused"]:
                assert got is None
            else:
                total = np.add(alone[0][i], alone[1][i])
                assert close(got, total / 2 if op == "mean" else total)


def test_what_is_unused_is_refused_with_what_to_do(framework):
    net = make_module(framework)
    clear(framework, net)
    with (
        pytest.raises(
            InvalidInput, match=r"none for parameters \[4, 5, 6, 7\].*freeze"
        ),
        reduce_in_buckets([list(net.parameters())]),
    ):
        loss(net, shard(0), False).backward()


def test_replicas_must_freeze_alike_and_not_all(framework):
    nets = [make_module(framework) for _ in range(2)]
    frozen = list(nets[0].frozen.parameters())
    for p in nets[1].last.parameters():
        p.stop_gradient = True
        p.requires_grad = False
    with (
        pytest.raises(InvalidInput, match="on rank 0 and .* of 10 on rank 1; freeze"),
        reduce_in_buckets([list(net.parameters()) for net in nets]),
    ):
        pass
    with (
        pytest.raises(InvalidInput, match="that collect gradients, got none"),
        reduce_in_buckets([frozen]),
    ):
        pass


@cache
def two_processes(ranks: Ranks):
    return ranks(beside_the_frameworks_own)


def test_two_processes_beside_the_frameworks_own(framework, staying):
    one, other = two_processes(staying(framework, framework, 2))
    for found in (one, other):
        assert len(found["buckets"]) > 1
        for theirs, ours in zip(found["theirs"], found["ours"], strict=True):
            for i, (a, b) in enumerate(zip(theirs, ours, strict=True)):
                if framework == "paddle" and a is not None and b is None:
                    assert not np.any(a), i  # theirs leaves zeros where ours has none
                else:
                    assert close(a, b), i
    assert one["ours"] == other["ours"]
    assert one["after"] == other["after"]  # each sums, and who lacks one is told
    assert "parameters [4, 5]" in one["refused"]
    assert "parameters [4, 5, 6, 7]" in other["refused"]


@pytest.mark.torch
@pytest.mark.xdist_group("torch-torch-2")
def test_the_adapters_for_the_tests_of_cs336_train_as_one_device(load, staying):
    load("torch")
    for rank, found in enumerate(two_processes(staying("torch", "torch", 2))):
        found = dict(found["cs336"])
        sizes = [15, 9, 9, 15]  # of what is sharded: table, first, frozen, last
        parts = [even_bounds(n, 2)[rank] for n in sizes]
        assert found.pop("shards") == [b - a for a, b in parts]
        trained = [15, 3, 3, 9, 15]  # what AdamW keeps an average of
        parts = [even_bounds(n, 2)[rank] for n in trained]
        assert found.pop("numbers of the state") == sum(b - a for a, b in parts)
        rounded = found.pop("FSDP, float32")
        assert 1e-9 < rounded < 1e-5
        assert len(found) == 5 and max(found.values()) < 1e-12, found
