"""Every plan is right as data, for every number of ranks; planted faults are named."""

import re
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import InvalidInput, PlanError
from d2lmulti.plans.allreduce import ALLREDUCE, hierarchical, together
from d2lmulti.plans.collectives import (
    allgather,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
)
from d2lmulti.plans.rounds import Round, even_bounds, even_edges, make_round
from d2lmulti.plans.verify import verify

PER_NODE = {
    f"hierarchical by {k}": partial(hierarchical, per_node=k) for k in (1, 2, 3, 5, 16)
}
ALL = {**ALLREDUCE, **PER_NODE}
OTHERS = {
    "reduce": reduce,
    "broadcast": broadcast,
    "reduce_scatter": reduce_scatter,
    "allgather": allgather,
    "alltoall": alltoall,
}
RANKS = [*range(1, 18), 31, 32]
LENGTHS = [0, 1, 2, 5, 16, 31, 97]


@pytest.mark.parametrize("name", ALL)
def test_every_contribution_is_added_exactly_once(name):
    for ranks in RANKS:
        for length in LENGTHS:
            verify(ALL[name](ranks, length), ranks, length)


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_collectives_do_what_they_promise(name):
    for ranks in RANKS:
        for length in LENGTHS if name != "alltoall" or ranks < 18 else [0, 1, 7]:
            verify(OTHERS[name](ranks, length), ranks, length, name)


@pytest.mark.parametrize("name", ["reduce", "broadcast"])
def test_any_rank_can_be_the_root(name):
    for ranks in (1, 2, 3, 7, 8, 13):
        for root in range(ranks):
            verify(OTHERS[name](ranks, 5, root), ranks, 5, name, root)
    with pytest.raises(PlanError, match="rank 0"):
        verify(OTHERS[name](4, 5, 1), 4, 5, name, root=0)


@given(
    name=st.sampled_from(list(ALL)),
    ranks=st.integers(1, 64),
    length=st.integers(0, 10**12),
)
def test_plans_are_right_for_any_ranks_and_any_length(name, ranks, length):
    verify(ALL[name](ranks, length), ranks, length)


@pytest.mark.parametrize("name", ALL)
def test_rounds_are_lazy_and_rows_sorted_and_never_empty(name):
    first = next(ALL[name](1024, 10**9))
    assert len(first) >= 1
    for ranks in (2, 7, 32):
        for this_round in ALL[name](ranks, 11):
            assert len(this_round) and (this_round.length > 0).all()
            assert (np.diff(this_round.source) >= 0).all()
    assert list(ALL[name](1, 11)) == []
    assert list(ALL[name](5, 0)) == []


@given(total=st.integers(0, 10**6), parts=st.integers(1, 100))
def test_a_cut_is_even_and_complete(total, parts):
    bounds = even_bounds(total, parts)
    sizes = [last - first for first, last in bounds]
    assert sum(sizes) == total and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert even_edges(total, parts).tolist() == [0, *np.cumsum(sizes)]


def test_together_merges_round_by_round():
    one = [make_round(2, 3, 0, 4, add=True), make_round(3, 2, 0, 4, add=False)]
    two = [make_round([0, 1], [1, 0], 0, [4, 0], add=True)]
    first, second = together([one, two])
    assert [t[:2] for t in first] == [(0, 1), (2, 3)]
    assert [t[:2] for t in second] == [(3, 2)]


# -- planted faults ----------------------------------------------------------------


def gives_right_numbers(rounds, ranks, length, collective) -> bool:
    """Judge a plan by running it on numbers that tell rank and place apart."""
    total = length * ranks if collective == "alltoall" else length
    places = np.arange(1, total + 1).astype(object)
    data = np.array([places * 1000**rank for rank in range(ranks)])
    whole, start = data.sum(axis=0), data.copy()
    for this_round in rounds:
        before = data.copy()
        for t in this_round:
            part = before[t.source, t.source_first : t.source_first + t.length]
            into = data[t.target, t.target_first : t.target_first + t.length]
            into[:] = into + part if t.add else part
    if collective == "alltoall":
        blocks = start.reshape((ranks, ranks, length)).swapaxes(0, 1)
        return (data == blocks.reshape(data.shape)).all()
    if collective == "broadcast":
        return (data == start[0]).all()
    if collective == "reduce":
        return (data[0] == whole).all()
    own = [slice(*bounds) for bounds in even_bounds(total, ranks)]
    if collective == "reduce_scatter":
        return all((data[r][part] == whole[part]).all() for r, part in enumerate(own))
    if collective == "allgather":
        mine = np.concatenate([start[r][part] for r, part in enumerate(own)])
        return (data == mine).all()
    return (data == whole).all()


def changed(this_round: Round, row: int, fault: str, ranks: int) -> Round:
    columns = {f.name: np.array(getattr(this_round, f.name)) for f in fields(Round)}
    if fault == "dropped":
        columns = {name: np.delete(c, row) for name, c in columns.items()}
    elif fault == "doubled":
        columns = {name: np.insert(c, row, c[row]) for name, c in columns.items()}
    else:  # one further on than meant, passing over the sender
        target = (columns["target"][row] + 1) % ranks
        if target == columns["source"][row]:
            target = (target + 1) % ranks
        columns["target"][row] = target
    return Round(**columns)


@pytest.mark.parametrize("fault", ["dropped", "doubled", "sent to a wrong neighbor"])
@pytest.mark.parametrize("name", [*ALL, *OTHERS])
def test_every_planted_fault_is_named_by_round_rank_and_part(name, fault):
    """And the proof by counts judges as a run on integers does."""
    plan = {**ALL, **OTHERS}[name]
    collective = name if name in OTHERS else "allreduce"
    rng = np.random.default_rng(0)
    planted = caught = 0
    for ranks in (3, 4, 6, 7, 8):
        length = 2 * ranks + 1
        rounds = list(plan(ranks, length))
        rows = [
            (i, j)
            for i, this_round in enumerate(rounds)
            for j in range(len(this_round))
        ]
        for pick in rng.permutation(len(rows))[:20]:
            i, j = rows[pick]
            broken = [*rounds]
            broken[i] = changed(rounds[i], j, fault, ranks)
            planted += 1
            right = gives_right_numbers(broken, ranks, length, collective)
            try:
                verify(broken, ranks, length, collective)
            except PlanError as error:
                assert_names_round_rank_and_part(error)
                # Two writers: what such a table gives depends on their order.
                assert not right or "one writer" in str(error)
                caught += 1
            else:  # a detour: the wrong neighbor passes the sum on, and all is well
                assert right and fault == "sent to a wrong neighbor"
        assert gives_right_numbers(rounds, ranks, length, collective)
    assert planted > 20 and caught > 8


def assert_names_round_rank_and_part(error):
    assert re.search(r"round \d+|\d+ rounds", str(error)), error
    assert re.search(r"rank \d+", str(error)), error
    assert re.search(r"elements \d+ to \d+", str(error)), error


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, 4, 0, 0, 2), "expected ranks 0 to 3"),
        ((-1, 2, 0, 0, 2), "expected ranks 0 to 3"),
        ((2, 2, 0, 0, 2), "expected two different ranks"),
        ((0, 1, 7, 7, 2), "expected elements within 0 to 8"),
        ((0, 1, -1, 0, 2), "from element 0 on"),
        ((3, 1, 1, 1, 1), "expected one writer, but rank 2 writes too"),
    ],
)
def test_illegal_rows_are_refused(row, message):
    rows = np.array(sorted([row, (2, 1, 0, 0, 2)]))
    table = Round(*rows.T, add=np.zeros(len(rows), bool))
    with pytest.raises(PlanError, match=message):
        verify([table], 4, 8)


def test_rows_out_of_order_parts_not_there_and_parts_mixed_up_are_refused():
    unsorted = Round(*np.array([[1, 0], [2, 3], [0, 0], [0, 0], [1, 1], [1, 1]]))
    with pytest.raises(PlanError, match="sorted by source"):
        verify([unsorted], 4, 8)
    early = [make_round(0, 1, 4, 2, add=False)]  # rank 0 starts with 0 to 2 only
    with pytest.raises(PlanError, match="nothing there yet"):
        verify(early, 4, 8, "allgather")
    mixed = [make_round(0, 1, 4, 2, add=True, target_first=2)]
    with pytest.raises(PlanError, match="another part"):
        verify(mixed, 4, 8)
    with pytest.raises(InvalidInput, match="as collective"):
        verify([], 1, 1, "allreduec")


def test_alltoall_blocks_in_the_wrong_place_are_seen():
    rounds = list(alltoall(2, 3))
    swapped = [
        Round(r.source, r.target, r.source_first, r.source_first, r.length, r.add)
        for r in rounds
    ]
    with pytest.raises(PlanError, match="at the end rank 0, elements 0 to 1"):
        verify(swapped, 2, 3, "alltoall")
