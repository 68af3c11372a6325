"""Buckets change when gradients travel, and never what arrives."""

import numpy as np
import pytest
from backends.compare import arrays, assert_all_same_bits, assert_replicas

from d2lmulti import allreduce, ledger
from d2lmulti.errors import InvalidInput
from d2lmulti.observe.ledger import Ledger
from d2lmulti.parallel.buckets import (
    GradientBuckets,
    cut_into_buckets,
    reduce_in_buckets,
)
from d2lmulti.plans.allreduce import ring

SHAPES = [(3, 4), (4, 5), (5, 2), (2, 2)]  # 12, 20, 10 and 4 numbers
K = 3  # devices


def device_params(B):
    rng = np.random.default_rng(0)
    start = [rng.normal(size=shape).astype("float32") for shape in SHAPES]
    replicas = [[B.array(p) for p in start] for _ in range(K)]
    for params in replicas:
        for p in params:
            B.attach_grad(p)
    return replicas


def losses_of(B, replicas):
    rng = np.random.default_rng(1)
    losses = []
    with B.record():
        for params in replicas:
            x = B.array(rng.normal(size=(2, 3)).astype("float32"))
            for p in params:
                x = B.relu(x @ p + 1)
            losses.append(x.sum())
    return losses


def gradients(B, replicas):
    return arrays(B, [[B.grad(p) for p in params] for params in replicas])


def unbucketed(B, algorithm):
    replicas = device_params(B)
    B.backward(losses_of(B, replicas))
    for same in zip(*replicas, strict=True):
        allreduce([B.grad(p) for p in same], algorithm)
    return gradients(B, replicas)


@pytest.mark.parametrize("bucket_bytes", [1, 60, 100, 10**6])
@pytest.mark.parametrize("algorithm", ["star", "ring", "halving_doubling"])
def test_buckets_give_the_sums_of_single_all_reduces(B, bucket_bytes, algorithm):
    replicas = device_params(B)
    losses = losses_of(B, replicas)
    with reduce_in_buckets(replicas, bucket_bytes, algorithm):
        B.backward(losses)
    got, want = gradients(B, replicas), unbucketed(B, algorithm)
    assert_replicas(got, want[0], 1e-5)
    if algorithm == "star":  # which adds every element in the order of the ranks
        assert_all_same_bits(got, want)


def test_buckets_are_filled_from_the_last_parameter(B):
    params = device_params(B)[0]  # of 48, 80, 40 and 16 bytes
    assert cut_into_buckets(params, 1) == [[3], [2], [1], [0]]
    assert cut_into_buckets(params, 41) == [[3, 2], [1], [0]]
    assert cut_into_buckets(params, 81) == [[3, 2, 1], [0]]
    assert cut_into_buckets(params, 137) == [[3, 2, 1, 0]]
    mixed = [B.array(np.ones(2, d)) for d in ("float32", "float64", "float64")]
    assert cut_into_buckets(mixed, 1000) == [[2, 1], [0]]
    with pytest.raises(InvalidInput):
        cut_into_buckets(params, 0)


def test_the_same_bytes_move_in_fewer_messages(B):
    """A parameter without a gradient, of 5 numbers, is reduced all the same."""
    sizes, counts = [12, 20, 10, 4, 5], {}
    for bucket_bytes in (1, 81, 10**6):
        replicas = device_params(B)
        losses = losses_of(B, replicas)
        for params in replicas:
            params.append(B.array(np.ones(5, "float32")))
            B.attach_grad(params[-1])
        with ledger() as l, reduce_in_buckets(replicas, bucket_bytes) as buckets:
            B.backward(losses)
        expected = Ledger()
        for bucket in buckets:
            expected.count_plan(ring(K, sum(sizes[i] for i in bucket)), 4)
        assert (l.bytes, l.messages) == (expected.bytes, expected.messages)
        assert l.bytes == 2 * (K - 1) * sum(sizes) * 4
        counts[bucket_bytes] = l.messages
    assert counts[1] > counts[81] > counts[10**6]


def test_buckets_leave_before_the_first_layer_is_ready(B):
    moved = {}
    for bucket_bytes in (1, 41, 10**6):
        replicas = device_params(B)
        losses = losses_of(B, replicas)
        with ledger() as l, reduce_in_buckets(replicas, bucket_bytes):
            B.backward(losses)
        ready = [f"gradient {i} ready" for i in (3, 2, 1, 0)]
        assert [m.label for m in l.marks] == ready
        moved[bucket_bytes] = l.marks[-1].bytes
    whole = 2 * (K - 1) * 4
    assert moved == {1: whole * 34, 41: whole * 34, 10**6: 0}


def test_a_gradient_that_grows_after_its_bucket_left_is_never_silent(B):
    replicas = device_params(B)
    first, second = losses_of(B, replicas), losses_of(B, replicas)
    try:
        with reduce_in_buckets(replicas, 1, "star"):
            B.backward(first)
            B.backward(second)
    except InvalidInput as error:
        assert "parameters [0, 1, 2, 3] got more" in str(error)
    else:  # MXNet has no hooks: it reports when both passes are over
        for got, want in zip(
            gradients(B, replicas)[0], unbucketed(B, "star")[0], strict=True
        ):
            np.testing.assert_allclose(got, 2 * want, rtol=1e-5)


def test_buckets_serve_many_steps_and_gradients_live_in_them(B):
    replicas = device_params(B)
    buckets = GradientBuckets(replicas, 10**6, "star")
    (bucket,) = buckets.buckets
    assert bucket == [3, 2, 1, 0]
    want = unbucketed(B, "star")
    for step in range(3):
        for p in (p for params in replicas for p in params):
            B.clear_grad_(p)
            if step == 2 and B.name == "torch":
                p.grad = None  # as zero_grad does
        losses = losses_of(B, replicas)
        with buckets.reduce():
            B.backward(losses)
        assert_all_same_bits(gradients(B, replicas), want)
    B.write_(buckets.flats[0][1], 0, 1, B.array(np.full(1, 9.0, "float32")))
    lives_there = float(B.numpy(B.grad(replicas[1][3])).flat[0]) == 9
    assert lives_there == (B.name in ("torch", "numpy"))
