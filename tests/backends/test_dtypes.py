"""Every dtype that a framework has goes through every collective, as NumPy says."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np
import pytest
from backends.compare import assert_same_bits

import d2lmulti
from d2lmulti.backends import BFLOAT16, DTYPES, NUMPY_DTYPES, numpy_dtype
from d2lmulti.backends.common import COMBINE
from d2lmulti.errors import InvalidInput
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import even_bounds

HELD = {
    "torch": DTYPES,
    "paddle": DTYPES,
    "numpy": NUMPY_DTYPES,
    "mxnet": NUMPY_DTYPES,
}
RANKS, LENGTH = 4, 11


def rounded(x: np.ndarray) -> np.ndarray:
    """The nearest bfloat16 of each float32: a significand of 8 bits, ties to even."""
    significand, exponent = np.frexp(x)
    return np.ldexp(np.rint(significand * 256) / 256, exponent).astype("float32")


def values(dtype: str, ranks: int = RANKS, length: int = LENGTH) -> np.ndarray:
    """Make values whose sum depends on its order, in NumPy's nearest dtype."""
    x = np.random.default_rng(0).normal(size=(ranks, length)) * 40
    if dtype == "bfloat16":
        return rounded(x.astype("float32"))
    return (np.abs(x) if dtype == "uint8" else x > 0 if dtype == "bool" else x).astype(
        dtype
    )


def tensor(B, x: np.ndarray, dtype: str):
    if dtype != "bfloat16":
        return B.array(x)
    found = B.zeros(x.shape, dtype)
    memory = B.memory(found)
    memory.view("uint16")[:] = x.reshape(-1).view("uint32") >> 16
    return found


def ops(dtype: str) -> list[str]:
    return ["sum", "max"] + ["mean"] * (numpy_dtype(dtype).kind in "fV")


def in_rank_order(x: np.ndarray, dtype: str, op: str) -> np.ndarray:
    """What the star gives: one addition after the other, each of them rounded."""

    def one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        c = np.maximum(a, b) if op == "max" else a + b
        return rounded(c) if dtype == "bfloat16" else c

    total = fold(one, x)
    if op == "mean":
        total = (total / len(x)).astype(total.dtype)
        total = rounded(total) if dtype == "bfloat16" else total
    return total


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_collective_takes_every_dtype_that_the_framework_has(B, dtype):
    if dtype not in HELD[B.name]:
        with pytest.raises(InvalidInput, match="expected a dtype among float32, .*got"):
            B.zeros((2,), dtype)
        return
    x = values(dtype)
    assert_same_bits(B.numpy(tensor(B, x[0], dtype)), x[0])
    assert B.dtype_of(B.copy_to(tensor(B, x[0], dtype), "sim:1")) == dtype

    def data():
        return [tensor(B, row, dtype) for row in x]

    for op in ops(dtype):
        want = in_rank_order(x, dtype, op)
        for algorithm in (*ALLREDUCE, "native"):
            found = data()
            d2lmulti.allreduce(found, algorithm, op=op)
            got = [B.numpy(y) for y in found]
            if algorithm in ("star", "native") or op == "max":
                assert_same_bits(got[0], want)
            else:
                bound = 0 if dtype == "bool" else 0.02 * np.abs(x).sum(0).max()
                assert np.abs(got[0] * 1.0 - want).max() <= bound
            for other in got[1:]:
                assert_same_bits(other, got[0])
        found = data()
        d2lmulti.reduce(found[:2], 1, op=op)
        assert_same_bits(B.numpy(found[1]), in_rank_order(x[1::-1], dtype, op))
        parts = d2lmulti.reduce_scatter(found[2:], op=op)
        pair = in_rank_order(x[2:], dtype, op)
        for part, bounds in zip(parts, even_bounds(LENGTH, 2), strict=True):
            assert_same_bits(B.numpy(part), pair[slice(*bounds)])
    found = data()
    d2lmulti.broadcast(found, 2)
    assert_same_bits(B.numpy(found[0]), x[2])
    for whole in d2lmulti.allgather([y[: i + 1] for i, y in enumerate(data())]):
        rows = [row[: i + 1] for i, row in enumerate(x)]
        assert_same_bits(B.numpy(whole), np.concatenate(rows))
        assert B.dtype_of(whole) == dtype
    x = values(dtype, length=RANKS)
    found = data()
    d2lmulti.alltoall(found)
    for rank, y in enumerate(found):
        assert_same_bits(B.numpy(y), x[:, rank])


@pytest.mark.parametrize("algorithm", [*ALLREDUCE, "native"])
def test_out_of_numpys_reach_the_backend_does_the_same(B, algorithm, monkeypatch):
    """Memory on a GPU is read and written by the backend, transfer by transfer."""
    for dtype, ranks, length in (
        *((dtype, RANKS, LENGTH) for dtype in HELD[B.name]),
        ("float32", 2, 5), ("float32", 3, 1), ("float32", 5, 13), ("float32", 8, 0),
    ):  # fmt: skip
        for op in ops(dtype):
            found = [tensor(B, row, dtype) for row in values(dtype, ranks, length)]
            beyond = [B.copy_to(y, "cpu") for y in found]
            d2lmulti.allreduce(found, algorithm, op=op)
            with monkeypatch.context() as patch:
                patch.setattr(B, "memory", lambda x: None)
                d2lmulti.allreduce(beyond, algorithm, op=op)
            for y, z in zip(found, beyond, strict=True):
                assert_same_bits(B.numpy(y), B.numpy(z))


@pytest.mark.torch
def test_sums_of_bfloat16_have_the_bits_of_the_framework(load):
    """Every bfloat16 with a hundred others: ties, infinities, what rounds to them."""
    import torch

    load("torch")
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16)
    every = every.view(torch.bfloat16)
    others = every[torch.randperm(1 << 16, generator=torch.manual_seed(0))[:100]]
    for other in [*others, every[1], every[0x7F7F], every[0xFF80], every[0x7F80]]:
        for name, function in (("sum", torch.add), ("max", torch.maximum)):
            want = function(every, other)
            x = every.view(torch.int16).numpy().view(BFLOAT16)
            y = other.expand(1 << 16).contiguous()
            y = y.view(torch.int16).numpy().view(BFLOAT16)
            out = np.empty_like(x)
            with np.errstate(all="ignore"):
                COMBINE[name](x, y, out=out)
            got = torch.from_numpy(out.view("int16")).view(torch.bfloat16)
            assert torch.equal(got.isnan(), want.isnan())
            same = got.view(torch.int16) == want.view(torch.int16)
            zeros = (got == 0) & (want == 0)  # a maximum of +0 and -0 may be either
            assert bool((same | want.isnan() | zeros).all())
