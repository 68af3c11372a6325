"""Attention over ranks that hold some of the tokens equals that of one device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from d2lmulti import devices, ledger
from d2lmulti.comm.mesh import Mesh
from d2lmulti.errors import InvalidInput
from d2lmulti.parallel import online_softmax as blocks
from d2lmulti.parallel.sequence import (
    ORDERS,
    check_tokens,
    ring_attention,
    token_positions,
)


def whole(Q, K, V, dO, causal):
    """Attention of all tokens with NumPy alone, and its gradients."""
    scores = np.einsum("qhd,khd->hqk", Q, K) / Q.shape[-1] ** 0.5
    if causal:
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    P = np.exp(scores - scores.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    dP = np.einsum("qhd,khd->hqk", dO, V)
    dS = P * (dP - (P * dP).sum(-1, keepdims=True)) / Q.shape[-1] ** 0.5
    return (
        np.einsum("hqk,khd->qhd", P, V),
        np.einsum("hqk,khd->qhd", dS, K),
        np.einsum("hqk,qhd->khd", dS, Q),
        np.einsum("hqk,qhd->khd", P, dO),
    )


def cut(B, xs, at, dtype="float64"):
    places = devices(len(at))
    return [
        [B.array(x[rows].astype(dtype), p) for rows, p in zip(at, places, strict=True)]
        for x in xs
    ]


def check(B, xs, at, causal, group=None, dtype="float64"):
    """Compare outputs and gradients; return what moved."""
    *parts, grads = cut(B, xs, at, dtype)
    with ledger() as moved:
        found = ring_attention(*parts, at, causal=causal, group=group)
        got = [found.outputs, *found.backward(grads)]
    tolerance = {"float64": 1e-12, "float32": 1e-4}[dtype]
    for ours, right in zip(got, whole(*xs, causal), strict=True):
        for x, rows in zip(ours, at, strict=True):
            assert B.dtype_of(x) == dtype
            most = tolerance * max(1, np.abs(xs[:2]).max())
            assert np.abs(B.numpy(x) - right[rows]).max() <= most
    return moved


@settings(max_examples=10)
@given(
    ranks=st.integers(1, 5),
    more=st.integers(0, 9),
    heads=st.integers(1, 4),
    size=st.integers(1, 3),
    order=st.sampled_from([*ORDERS, "any"]),
    causal=st.booleans(),
    scale=st.sampled_from([1, 40]),
    seed=st.integers(0, 99),
)
@example(4, 3, 1, 2, "zigzag", True, 1, 0)
def test_any_parts_equal_one_device(
    B, ranks, more, heads, size, order, causal, scale, seed
):
    length = ranks + more
    rng = np.random.default_rng(seed)
    xs = rng.normal(size=(4, length, heads, size))
    xs[:2] *= scale  # exponentials of scores in the thousands are infinite
    if order == "any":  # parts of any sizes, of tokens in any order
        edges = np.sort(rng.choice(np.arange(1, length), ranks - 1, replace=False))
        at = np.split(rng.permutation(length), edges)
    else:
        at = token_positions(length, ranks, order)
    moved = check(B, xs, at, causal)
    numbers = length * heads * size
    once = 2 * (ranks - 1) * numbers * 8  # keys and values; then also their gradients
    if ranks > 1:
        assert moved.by_label["ring attention forward"] == once
    if order != "any" and length % ranks == 0:
        assert moved.bytes == 3 * once


def test_in_sub_groups_of_a_mesh_and_in_float32(B):
    mesh = Mesh(data=2, sequence=3)
    rng = np.random.default_rng(0)
    for group in mesh.groups("sequence"):
        xs = rng.normal(size=(4, 11, 3, 2))
        at = token_positions(11, 3)
        moved = check(B, xs, at, True, group, "float32")
        assert {rank for link in moved.links for rank in link} == {*group.ranks}


def test_who_computes_how_many_blocks(B, monkeypatch):
    """A zigzag's halves that nobody needs are left out; every rank does as much."""
    seen = []
    real = blocks.add_block

    def counting(B, so_far, scores, V):
        seen.append((scores.shape, round(float(B.numpy(scores).max()))))
        return real(B, so_far, scores, V)

    monkeypatch.setattr(blocks, "add_block", counting)
    counted = {}
    for order in ORDERS:
        at = token_positions(24, 3, order)
        Q, K, V, _ = cut(B, np.ones((4, 24, 1, 1)), at)
        seen.clear()
        ring_attention([q * rank for rank, q in enumerate(Q)], K, V, at)
        assert {tuple(shape) for shape, _ in seen} == {(1, 4, 4)}
        ranks = [rank for _, rank in seen]  # every score is the number of the rank
        counted[order] = [ranks.count(rank) for rank in range(3)]
    # Of the four pairs of halves a rank computes three of its own, and of another's all
    # or none if contiguous, two in a zigzag, three in stripes.
    assert counted == {
        "contiguous": [3, 7, 11], "striped": [9, 9, 9], "zigzag": [7, 7, 7]
    }  # fmt: skip


def test_ranks_that_cut_unlike_make_different_calls(B):
    cuts = [token_positions(7, 2, order) for order in ("contiguous", "zigzag")]
    words = set()
    for at in cuts:
        parts = cut(B, np.ones((3, 7, 1, 1)), at)
        for causal in (True, False):
            words.add(check_tokens(*parts, at, causal, None).call("ring attention"))
    assert len(words) == 4
    assert all("ring attention of 7 tokens" in said for said in words)


def test_positions():
    assert [p.tolist() for p in token_positions(7, 3)] == [[0, 1, 6], [2, 5], [3, 4]]
    striped = [p.tolist() for p in token_positions(7, 3, "striped")]
    assert striped == [[0, 3, 6], [1, 4], [2, 5]]
    with pytest.raises(InvalidInput, match="3 tokens over 4 ranks"):
        token_positions(3, 4)


def test_what_does_not_fit_is_refused_by_name(B):
    at = token_positions(8, 2)
    Q, K, V = cut(B, np.ones((3, 8, 3, 2)), at)
    for positions in (at[:1], [at[0], at[0]], [at[0], at[1] + 0.5]):
        with pytest.raises(InvalidInput, match="position"):
            ring_attention(Q, K, V, positions)
    with pytest.raises(InvalidInput, match=r"keys of shape .*got .*\(4, 2, 2\)"):
        ring_attention(Q, cut(B, np.ones((1, 8, 2, 2)), at)[0], V, at)
