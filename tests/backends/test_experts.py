"""Slots of experts, and a layer of them; on several ranks see `test_on_mesh`."""

from __future__ import annotations

import numpy as np
import pytest

from d2lmulti.errors import InvalidInput
from d2lmulti.models.experts import expert_capacity, experts_layer, route_tokens

WIDTH, HIDDEN = 3, 4


def leaf(B, value):
    x = B.array(np.ascontiguousarray(value))
    B.attach_grad(x)
    return x


def test_the_cut_decides_who_is_dropped(B):
    """Six tokens of which four want expert 0, with room for two on each rank."""
    choice = np.array([0, 0, 0, 1, 1, 0])
    whole = route_tokens(choice, 2, 4)
    assert (whole.slot_of < 8).all()
    halves = [route_tokens(part, 2, 2) for part in np.split(choice, 2)]
    assert [(half.slot_of == 4).sum() for half in halves] == [1, 0]
    assert halves[0].token_of.tolist() == [0, 1, 3, 3]
    assert halves[0].slot_of.tolist() == [0, 1, 4]


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
