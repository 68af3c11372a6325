"""Experts on several ranks equal those of one, when the same tokens are dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from d2lmulti import ledger
from d2lmulti.comm.cooperative import run_cooperatively
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput
from d2lmulti.models.experts import (
    expert_capacity,
    expert_layer,
    experts_layer,
    route_tokens,
)

WIDTH, HIDDEN = 3, 4


def alone(X, router, W1, W2, parts, capacity):
    """All experts with NumPy, token by token; `parts` are the ranks' counts of tokens.

    Gives outputs, the loss sum(Y^2) / 2 + balance, its gradients, and who is dropped.
    """
    n, experts = router.shape
    E = len(router[0])
    logits = X @ router
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    choice = p.argmax(1)
    room, dropped = {}, []
    for t, rank in enumerate(np.repeat(np.arange(len(parts)), parts)):
        room[rank, choice[t]] = room.get((rank, choice[t]), 0) + 1
        if room[rank, choice[t]] > capacity:
            dropped.append(t)
    share = np.bincount(choice, minlength=E) / len(X)
    Y = X.copy()
    dW1, dW2 = np.zeros_like(W1), np.zeros_like(W2)
    dp = np.tile(E * share / len(X), (len(X), 1))
    dX = X.copy()  # of those who are dropped: the loss is sum(Y^2) / 2
    for t in set(range(len(X))) - set(dropped):
        e = choice[t]
        h = X[t] @ W1[e]
        out = np.maximum(h, 0) @ W2[e]
        Y[t] += p[t, e] * out
        dout, dp[t, e] = Y[t] * p[t, e], dp[t, e] + Y[t] @ out
        dh = (W2[e] @ dout) * (h > 0)
        dW2[e] += np.outer(np.maximum(h, 0), dout)
        dW1[e] += np.outer(X[t], dh)
        dX[t] = Y[t] + W1[e] @ dh
    dlogits = p * (dp - (p * dp).sum(1, keepdims=True))
    dX += dlogits @ router.T
    loss = (Y**2).sum() / 2 + E * (share * p.mean(0)).sum()
    return Y, loss, [dX, X.T @ dlogits, dW1, dW2], dropped


def leaf(B, value):
    x = B.array(np.ascontiguousarray(value))
    B.attach_grad(x)
    return x


def on_ranks(B, X, router, W1, W2, parts, capacity):
    ranks, ends = len(parts), np.cumsum(parts)
    mine = [
        [leaf(B, x), leaf(B, router), leaf(B, w1), leaf(B, w2)]
        for x, w1, w2 in zip(
            np.split(X, ends[:-1]), np.split(W1, ranks), np.split(W2, ranks),
            strict=True,
        )
    ]  # fmt: skip
    said = [None] * ranks

    def network(rank, x, *params):
        Y, balance, route = yield from expert_layer(B, params, x, capacity, ranks)
        said[rank] = B.numpy(Y), route
        return (Y * Y).sum() * 0.5 + balance

    with ledger() as moved:
        with B.record():
            losses, back = run_cooperatively(
                B, [network(r, *leaves) for r, leaves in enumerate(mine)],
                local_group(ranks),
            )  # fmt: skip
        back.backward(losses)
    dX, drouter, dW1, dW2 = (
        [B.numpy(B.grad(x)) for x in each] for each in zip(*mine, strict=True)
    )
    grads = [np.concatenate(dX), sum(drouter), np.concatenate(dW1), np.concatenate(dW2)]
    Y = np.concatenate([y for y, _ in said])
    loss = sum(float(B.numpy(loss)) for loss in losses)
    return Y, loss, grads, [route for _, route in said], moved


@settings(max_examples=12)
@given(
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    own=st.integers(1, 2),
    capacity=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@example(parts=[3, 4, 5], own=2, capacity=2, seed=0)
def test_any_shares_equal_one_device(B, parts, own, capacity, seed):
    rng, ranks = np.random.default_rng(seed), len(parts)
    experts = own * ranks
    values = [
        rng.normal(size=shape)
        for shape in [
            (sum(parts), WIDTH), (WIDTH, experts),
            (experts, WIDTH, HIDDEN), (experts, HIDDEN, WIDTH),
        ]
    ]  # fmt: skip
    Y, loss, grads, dropped = alone(*values, parts, capacity)
    found, found_loss, found_grads, routes, moved = on_ranks(
        B, *values, parts, capacity
    )
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for ours, right in zip([found, *found_grads], [Y, *grads], strict=True):
        assert np.abs(ours - right).max() <= 1e-12 * max(1, np.abs(right).max())
    assert sum(route.dropped for route in routes) == len(dropped)
    # There and back, forward and backward, all but a rank's own block; and the shares.
    slots = experts * capacity * (ranks - 1)
    assert moved.bytes == (4 * slots * WIDTH + 2 * (ranks - 1) * experts) * 8


@pytest.mark.parametrize("parts", [[9], [5, 4], [1, 2, 6], [2, 1, 3, 3]])
def test_without_a_capacity_every_cut_equals_one_device(B, parts):
    rng = np.random.default_rng(sum(parts) + len(parts))
    shapes = (9, WIDTH), (WIDTH, 12), (12, WIDTH, HIDDEN), (12, HIDDEN, WIDTH)
    values = [rng.normal(size=shape) for shape in shapes]
    values[1][:, 2] += 5 * values[0].mean(0)  # expert 2 is wanted most
    Y, loss, grads, dropped = alone(*values, [9], 9)
    assert not dropped
    found, found_loss, found_grads, routes, moved = on_ranks(B, *values, parts, None)
    assert found_loss == pytest.approx(loss, rel=1e-12)
    for ours, right in zip([found, *found_grads], [Y, *grads], strict=True):
        assert np.abs(ours - right).max() <= 1e-12 * max(1, np.abs(right).max())
    assert all(route.dropped == 0 for route in routes)
    most = max(route.chosen.max() for route in routes)
    slots, others = 12 * int(most) * (len(parts) - 1), len(parts) - 1
    # The loads of 12 experts are added up, and the largest load goes around.
    assert moved.bytes == (4 * slots * WIDTH + 2 * others * (12 + 1)) * 8


def test_the_cut_decides_who_is_dropped(B):
    """Six tokens of which four want expert 0, with room for two on each rank."""
    choice = np.array([0, 0, 0, 1, 1, 0])
    assert route_tokens(choice, 2, 4).dropped == 0
    halves = [route_tokens(part, 2, 2) for part in np.split(choice, 2)]
    assert [route.dropped for route in halves] == [1, 0]
    assert halves[0].token_of.tolist() == [0, 1, 3, 3]
    assert halves[0].slot_of.tolist() == [0, 1, 4]
    assert halves[1].chosen.tolist() == [1, 2]


def test_capacity():
    assert [expert_capacity(100, 8, f) for f in (1, 1.25, 0.01)] == [13, 16, 1]
    with pytest.raises(InvalidInput, match="above 0 as factor, got 0"):
        expert_capacity(100, 8, 0)


def test_the_layer_of_a_transformer_is_all_experts_with_zeros_for_the_others(B):
    rng = np.random.default_rng(4)
    shapes = (WIDTH,), (WIDTH,), (WIDTH, 3), (3, WIDTH, HIDDEN), (3, HIDDEN, WIDTH)
    values = [rng.normal(size=shape) for shape in shapes]
    X, found = rng.normal(size=(2, 5, WIDTH)), []

    def naive(B, params, X):
        gamma, beta, router, W1, W2 = params
        H = B.layer_norm(X, gamma, beta).reshape((10, WIDTH))
        p = B.softmax(H @ router)
        one_hot = B.array(np.eye(3)[B.numpy(p).argmax(1)])
        for e in range(3):
            w1, w2 = W1[e : e + 1].reshape(shapes[3][1:]), W2[e : e + 1]
            out = B.relu(H @ w1) @ w2.reshape(shapes[4][1:])
            gate = (p * one_hot)[:, e : e + 1]
            X = X + (gate * out).reshape((2, 5, WIDTH))
        return X

    for layer in (experts_layer, naive):
        params, x = [leaf(B, value) for value in values], leaf(B, X)
        with B.record():
            Y = layer(B, params, x)
            loss = (Y * Y).sum()
        B.backward([loss])
        found.append(
            [B.numpy(B.detach(Y))] + [B.numpy(B.grad(p)) for p in [x, *params]]
        )
    for ours, right in zip(*found, strict=True):
        assert np.abs(ours - right).max() <= 1e-12 * np.abs(right).max()


def test_experts_that_are_not_shared_out_evenly_are_refused(B):
    X, router = B.array(np.ones((4, WIDTH))), B.array(np.ones((WIDTH, 5)))
    W = B.array(np.ones((2, WIDTH, WIDTH)))
    with pytest.raises(InvalidInput, match="5 experts .* over 2 ranks"):
        next(expert_layer(B, [router, W, W], X, 2, 2))
