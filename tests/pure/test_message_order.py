"""A round's messages in turns: nobody has two at once, and nobody waits for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import PlanError
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.collectives import alltoall
from d2lmulti.plans.message_order import messages_of, order_messages
from d2lmulti.plans.rounds import make_round

ranks = st.integers(0, 8)


@given(st.lists(st.tuples(ranks, ranks).filter(lambda pair: pair[0] != pair[1])))
def test_a_rank_has_one_message_a_turn(pairs: list[tuple[int, int]]) -> None:
    turns = order_messages(pairs)
    for turn in set(turns):
        ends = [
            end for p, t in zip(pairs, turns, strict=True) if t == turn for end in p
        ]
        assert len(ends) == len(set(ends))


@pytest.mark.parametrize("algorithm", ALLREDUCE)
@pytest.mark.parametrize("n", [2, 4, 5])
def test_waiting_sends_come_to_an_end(algorithm: str, n: int) -> None:
    for this_round in ALLREDUCE[algorithm](n, 40):
        shares = [messages_of(this_round, rank) for rank in range(n)]
        queues = [
            sorted([*((m.turn, m.row) for m in (*s.sends, *s.receives))])
            for s in shares
        ]
        while any(queues):  # a message happens when it comes next at both of its ends
            heads = [queue[0] for queue in queues if queue]
            met = {head for head in heads if heads.count(head) == 2}
            assert met, queues
            queues = [q[1:] if q and q[0] in met else q for q in queues]


def test_what_is_overwritten_before_it_left_is_marked() -> None:
    (swap,) = [r for r in alltoall(2, 3)]
    share = messages_of(swap, 0)
    assert [m.clashes for m in share.sends] == [True]
    assert [m.clashes for m in share.receives] == [False]
    onto_one = make_round(np.array([1, 2]), 0, 0, 4, add=np.array([False, True]))
    assert [m.clashes for m in messages_of(onto_one, 0).receives] == [True, True]


def test_a_message_to_oneself_is_refused() -> None:
    with pytest.raises(PlanError, match="from rank 1 to itself"):
        messages_of(make_round(1, 1, 0, 2, add=False, target_first=4), 1)
