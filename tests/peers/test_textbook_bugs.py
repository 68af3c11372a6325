"""Two bugs of D2L's chapter fail the checks that our functions pass.

Its `get_params` shares the tensors of devices that are one and the same place, and its
`allreduce`, until d2l-en#1978, bound a new tensor to the list instead of writing into
the old one, so every replica but the first kept its own gradient.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from d2lmulti import SGD, allreduce, get_params, split_batch
from d2lmulti.backends import backend_of

OURS = SimpleNamespace(get_params=get_params, allreduce=allreduce)


def get_params_that_aliases(params, device):
    """D2L's chapter: `to` returns the tensor itself if it is there already."""
    new_params = [p.to(device) for p in params]
    for p in new_params:
        backend_of(p).attach_grad(p)
    return new_params


def allreduce_that_rebinds(data):
    """D2L's chapter before the fix: its second loop changes nothing but the list."""
    for i in range(1, len(data)):
        data[0][:] += data[i].to("cpu")
    for i in range(1, len(data)):
        data[i] = data[0].to("cpu")


def allreduce_since_the_fix(data):
    """D2L's chapter today."""
    for i in range(1, len(data)):
        data[0][:] += data[i].to("cpu")
    for i in range(1, len(data)):
        data[i][:] = data[0].to("cpu")


ALIASING = SimpleNamespace(
    get_params=get_params_that_aliases, allreduce=allreduce_since_the_fix
)
REBINDING = SimpleNamespace(get_params=get_params, allreduce=allreduce_that_rebinds)


# For MXNet the chapter says `copyto`, which copies, and writes into what is there.
@pytest.fixture(
    params=[pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("torch", "paddle")]
)
def B(request, load):
    return load(request.param)


def step(B, functions, k):
    """Fit a line in one step on k devices; return how far each replica went from 0."""
    X, y = B.array(np.linspace(1, 2, 6)), B.array(np.linspace(3, 5, 6))
    start = B.array([0.0])
    replicas = [functions.get_params([start], "cpu") for _ in range(k)]
    shards = zip(*split_batch(X, y, ["cpu"] * k), strict=True)
    with B.record():
        losses = [
            ((X_shard * w - y_shard) ** 2).sum()
            for (X_shard, y_shard), (w,) in zip(shards, replicas, strict=True)
        ]
    B.backward(losses)
    functions.allreduce([B.grad(w) for (w,) in replicas])
    for (w,) in replicas:
        SGD().step_([w], [], lr=0.01, n=6)
        B.clear_grad_(w)  # D2L's sgd clears the gradient after the step
    return [B.numpy(w)[0] for (w,) in replicas]


def check_storage(B, functions):
    """Writing to one replica leaves the others as they are."""
    params = [B.array([1.0, 2.0])]
    first, second = (functions.get_params(params, "cpu") for _ in range(2))
    B.write_(first[0], 0, 1, B.array([9.0]))
    assert B.numpy(second[0]).tolist() == [1, 2]
    assert B.numpy(params[0]).tolist() == [1, 2]


def check_every_rank_has_the_sum(B, functions):
    """The tensors themselves hold the sum, not only the list."""
    tensors = [B.array([1.0, 2.0]), B.array([10.0, 20.0]), B.array([100.0, 200.0])]
    functions.allreduce(list(tensors))
    assert [B.numpy(x).tolist() for x in tensors] == [[111, 222]] * 3


def check_all_replicas_step_like_one(B, functions):
    """All replicas end where one device alone ends."""
    (alone,) = step(B, OURS, 1)
    assert step(B, functions, 3) == pytest.approx([alone] * 3, rel=1e-12)


def check_the_first_replica_steps_like_one(B, functions):
    """What a look at replica 0 sees."""
    (alone,) = step(B, OURS, 1)
    assert step(B, functions, 3)[0] == pytest.approx(alone, rel=1e-12)


CHECKS = [
    check_storage,
    check_every_rank_has_the_sum,
    check_all_replicas_step_like_one,
    check_the_first_replica_steps_like_one,
]


@pytest.mark.parametrize("check", CHECKS)
def test_ours_pass_every_check(B, check):
    check(B, OURS)


@pytest.mark.parametrize("check", [check_storage, check_all_replicas_step_like_one])
def test_the_aliasing_is_seen(B, check):
    with pytest.raises(AssertionError):
        check(B, ALIASING)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_aliasing_makes_the_step_too_big_by_a_power_of_two(B, k):
    (alone,) = step(B, OURS, 1)
    assert step(B, ALIASING, k) == pytest.approx([alone * 2 ** (k - 1)] * k)


@pytest.mark.parametrize(
    "check", [check_every_rank_has_the_sum, check_all_replicas_step_like_one]
)
def test_the_rebinding_is_seen(B, check):
    with pytest.raises(AssertionError):
        check(B, REBINDING)


def test_a_look_at_replica_0_does_not_see_the_rebinding(B):
    """Why it stayed for eleven months."""
    check_the_first_replica_steps_like_one(B, REBINDING)
