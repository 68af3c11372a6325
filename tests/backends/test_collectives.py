"""Every algorithm on every backend equals NumPy, and all replicas agree bit for bit."""

from functools import partial

import numpy as np
import pytest
from backends.compare import assert_same_bits

from d2lmulti import allreduce, ledger
from d2lmulti.comm.collectives import (
    allgather,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
)
from d2lmulti.comm.group import LocalEngine
from d2lmulti.observe.ledger import Ledger
from d2lmulti.plans.allreduce import ALLREDUCE, choose_allreduce, hierarchical
from d2lmulti.plans.rounds import even_bounds, make_round

ALGORITHMS = {
    **ALLREDUCE,
    "hierarchical by 2": partial(hierarchical, per_node=2),
    "hierarchical by 3": partial(hierarchical, per_node=3),
    "auto": "auto",
}
RANKS = [*range(1, 18), 32]
DTYPES = ["float32", "float64", "int64", "int32"]
CASES = 160  # random ones an algorithm, beside the grid


def vectors(rng, ranks, shape, dtype):
    if dtype.startswith("int"):
        return rng.integers(-1000, 1000, (ranks, *shape)).astype(dtype)
    return rng.normal(size=(ranks, *shape)).astype(dtype)


def check_allreduce(B, plan, start, op="sum"):
    data = [B.array(x) for x in start]
    before = list(data)
    allreduce(data, plan, op=op)
    assert all(x is y for x, y in zip(data, before, strict=True))  # in place
    got = [B.numpy(x) for x in data]
    for other in got[1:]:
        assert_same_bits(other, got[0])
    exact = {"sum": start.sum, "mean": start.mean, "max": start.max}[op](axis=0)
    assert got[0].shape == start.shape[1:] and got[0].dtype == start.dtype
    if start.dtype.kind == "i" or op == "max":
        assert (got[0] == exact).all()
    else:  # sums in another order differ by a rounding error an addition
        error = np.finfo(start.dtype).eps * len(start) * np.abs(start).sum(axis=0)
        assert (np.abs(got[0] - exact) <= error).all()


@pytest.mark.dealt
@pytest.mark.parametrize("name", ALGORITHMS)
def test_allreduce_equals_numpy_for_all_ranks_and_small_lengths(B, name):
    rng = np.random.default_rng(0)
    for ranks in RANKS:
        for length in {0, 1, ranks - 1, 13}:  # fewer elements than ranks, and a prime
            for dtype in DTYPES:
                start = vectors(rng, ranks, (length,), dtype)
                check_allreduce(B, ALGORITHMS[name], start)


@pytest.mark.dealt
@pytest.mark.parametrize("name", ALGORITHMS)
def test_allreduce_equals_numpy_in_random_cases(B, name):
    rng = np.random.default_rng(1)
    for i in range(CASES):
        # Few ranks more often than many: a ring of n has 2n(n-1) messages.
        ranks = int(rng.choice([*range(1, 10)] * 3 + [*range(10, 18)]))
        shape = tuple(rng.integers(0, 12, rng.integers(1, 3)))
        op = str(rng.choice(["sum", "sum", "mean", "max"]))
        dtype = str(rng.choice(DTYPES[:2] if op == "mean" else DTYPES))
        start = vectors(rng, ranks, shape, dtype)
        if B.name != "numpy" and i % 4:
            continue  # a framework takes every fourth
        try:
            check_allreduce(B, ALGORITHMS[name], start, op)
        except BaseException as error:
            error.args = (f"{ranks=} {shape=} {op=} {dtype=}: {error}",)
            raise


def test_the_largest_may_be_infinite_and_nan_is_never_lost(B):
    start = np.array([[1, -np.inf, np.nan, 0], [2, -5, 7, np.inf], [np.nan, -9, 1, 2]])
    for name in ALLREDUCE:
        data = [B.array(x) for x in start]
        allreduce(data, name, op="max")
        for x in data:
            np.testing.assert_array_equal(B.numpy(x), [np.nan, -5, np.nan, np.inf])


# -- the others ----------------------------------------------------------------------


def test_the_other_collectives_equal_numpy(B):
    rng = np.random.default_rng(3)
    for _ in range(150 if B.name == "numpy" else 40):
        ranks = int(rng.integers(1, 10))
        shape = tuple(rng.integers(0, 9, rng.integers(1, 3)))
        dtype = str(rng.choice(DTYPES))
        op = str(rng.choice(["sum", "max"] + ["mean"] * dtype.startswith("float")))
        root = int(rng.integers(ranks))
        start = vectors(rng, ranks, shape, dtype)
        whole = start.max(axis=0) if op == "max" else start.sum(axis=0, dtype=dtype)
        whole = whole / ranks if op == "mean" else whole
        equal = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)

        data = [B.array(x) for x in start]
        broadcast(data, root)
        for x in data:
            assert_same_bits(B.numpy(x), start[root])

        data = [B.array(x) for x in start]
        reduce(data, root, op=op)
        equal(B.numpy(data[root]), whole)

        data = [B.array(x) for x in start]
        parts = reduce_scatter(data, op=op)
        for rank, bounds in enumerate(even_bounds(whole.size, ranks)):
            equal(B.numpy(parts[rank]), whole.reshape(-1)[slice(*bounds)])
            assert_same_bits(B.numpy(data[rank]), start[rank])  # left alone

        pieces = [x[: int(rng.integers(0, shape[0] + 1))] for x in start]
        for x in allgather([B.array(piece) for piece in pieces]):
            assert_same_bits(B.numpy(x), np.concatenate(pieces))

        blocks = vectors(rng, ranks, (ranks, *shape), dtype)  # (from, to, ...)
        data = [B.array(x.reshape((ranks * shape[0], *shape[1:]))) for x in blocks]
        alltoall(data)
        for rank, x in enumerate(data):
            assert_same_bits(B.numpy(x), blocks[:, rank].reshape(tuple(x.shape)))


# -- what a round means --------------------------------------------------------------


def test_all_transfers_of_a_round_read_the_state_before_it(B):
    data = [B.array([1.0, 2.0]), B.array([10.0, 20.0]), B.array([100.0, 200.0])]
    swap = make_round([0, 1, 2], [1, 2, 0], 0, 2, add=[False, True, False])
    LocalEngine().exchange(data, [swap])
    got = [B.numpy(x).tolist() for x in data]
    assert got == [[100, 200], [1, 2], [110, 220]]
    shift = make_round([0, 1], [1, 0], [0, 1], 1, add=False, target_first=[1, 0])
    LocalEngine().exchange(data, [shift])
    assert [B.numpy(x).tolist() for x in data] == [[2, 200], [1, 100], [110, 220]]


def test_many_sources_add_into_one_part_in_ascending_order(B):
    values = np.array([1e8, 1.0, -1e8, 1.0, 3.0], "float32")
    data = [B.array(values[i : i + 1]) for i in range(5)]
    rounds = [make_round([4, 2, 1, 3], 0, 0, 1, add=True)]
    LocalEngine().exchange(data, rounds)
    expected = values[0]
    for i in (1, 2, 3, 4):
        expected = np.float32(expected + values[i])
    assert B.numpy(data[0])[0] == expected


def test_the_ledger_sees_what_the_plan_says(B):
    for name, plan in ALGORITHMS.items():
        for ranks, length in ((6, 13), (4, 10), (5, 10**5)):
            data = [B.zeros((length,), "float32") for _ in range(ranks)]
            with ledger() as l:
                allreduce(data, plan)
            chosen = choose_allreduce(ranks, 4 * length) if name == "auto" else name
            rounds = ALGORITHMS[chosen]
            if isinstance(rounds, str):
                rounds = ALLREDUCE[rounds]
            planned = Ledger().count_plan(rounds(ranks, length), itemsize=4)
            assert (l.links, l.messages_sent) == (planned.links, planned.messages_sent)
            assert (l.rounds, l.bytes) == (planned.rounds, planned.bytes)
