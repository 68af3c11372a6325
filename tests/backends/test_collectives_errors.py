"""A collective that cannot be right is refused before anything moves."""

import numpy as np
import pytest

from d2lmulti import allreduce, ledger
from d2lmulti.comm.collectives import (
    allgather,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
    run_plan,
)
from d2lmulti.comm.group import local_group
from d2lmulti.errors import InvalidInput
from d2lmulti.plans.rounds import make_round


def ones(B, *shape, dtype="float64"):
    return B.array(np.ones(shape, dtype))


REFUSED = {
    "ranks with other shapes are named": (
        lambda B: allreduce([ones(B, 2), ones(B, 3), ones(B, 2), ones(B, 4)]),
        r"got \(2,\) float64 on ranks 0, 2, \(3,\) float64 on rank 1 and \(4,\) "
        r"float64 on rank 3; every rank must",
    ),
    "ranks with other dtypes are named": (
        lambda B: broadcast([ones(B, 2), ones(B, 2, dtype="int64")]),
        r"float64 on rank 0 and \(2,\) int64 on rank 1",
    ),
    "an unknown operation": (
        lambda B: allreduce([ones(B, 2)], op="product"), "sum, mean, max.*'product'",
    ),
    "a mean of integers": (
        lambda B: reduce_scatter([ones(B, 2, dtype="int64")], op="mean"),
        "floating-point.*got int64",
    ),
    "a root that is no rank": (
        lambda B: broadcast([ones(B, 2)] , root=1), "from 0 to 0 as root, got 1",
    ),
    "a root that is no number": (
        lambda B: reduce([ones(B, 2)], root="0"), "as root, got '0'",
    ),
    "rows that differ in more than their number": (
        lambda B: allgather([ones(B, 2, 3), ones(B, 2, 2), ones(B, 1, 2)]),
        r"rows of \(3,\) float64 on rank 0 and rows of \(2,\) float64 on ranks 1, 2",
    ),
    "a number to gather": (lambda B: allgather([ones(B)]), r"one number on rank 0"),
    "blocks that do not come out even": (
        lambda B: alltoall([ones(B, 5), ones(B, 5)]),
        "2 ranks divide, got 5.*to 6 rows",
    ),
    "a list of another length than the group": (
        lambda B: allreduce([ones(B, 5)], group=local_group(2)), "2 ranks, got 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_call_is_refused_and_moves_nothing(B, case):
    call, message = REFUSED[case]
    with ledger() as l, pytest.raises(InvalidInput, match=message):
        call(B)
    assert l.messages == 0


def test_a_plan_that_leaves_the_vector_says_so(B):
    data, rounds = [ones(B, 2), ones(B, 2)], [make_round(0, 1, 1, 2, add=True)]
    with pytest.raises(InvalidInput, match="expected 0 <= first <= last <= 2"):
        run_plan(data, rounds, local_group(2))
