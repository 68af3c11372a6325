"""Prove a plan right as data, without running a tensor.

The state says, for every rank and every piece of its vector, how many times each rank's
contribution is in it. A plan is right when every count that matters ends at exactly
what the collective promises. A count is a count on every input, so one check of
(ranks, length) covers all values, dtypes and frameworks. Chapter: *allreduce*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest

import numpy as np

from ..checks import MAX_RANKS, check_choice, check_count
from ..errors import PlanError
from .rounds import MOST_ELEMENTS, Round, Transfer
from .symbolic import State, in_words, states

COLLECTIVES = (
    *("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "alltoall"),
)


def verify(
    rounds: Iterable[Round],
    ranks: int,
    length: int,
    collective: str = "allreduce",
    root: int = 0,
) -> None:
    """Check that `rounds` do what `collective` promises for (ranks, length).

    `collective` is allreduce, reduce, broadcast, reduce_scatter, allgather or alltoall
    (there, `length` is that of a block). Raises `PlanError` for a contribution that is
    missing or counted twice, and for a round that is no legal table. Memory grows with
    ranks^2 times the number of parts: meant for up to about a hundred ranks.
    """
    table = list(rounds)
    ranks = check_count("ranks", ranks, max=MAX_RANKS)
    length = check_count("length", length, min=0, max=MOST_ELEMENTS)
    root = check_count("root", root, min=0, max=ranks - 1)
    check_choice("collective", collective, COLLECTIVES)
    total = length * ranks if collective == "alltoall" else length
    for number, this_round in enumerate(table, 1):
        _check_table(this_round, number, ranks, total)
    *_, state = states(table, ranks, length, collective)
    _check_end(state, len(table), *_promise(collective, state, root))


def compare(rounds: Iterable[Round], expected: Iterable[Round]) -> None:
    """Check that two plans are the same, transfer by transfer.

    Stricter than `verify`: in a ring, a partial sum that passes over one neighbour may
    still end right, but it went another way. Raises `PlanError` at the first round that
    differs.
    """
    for number, (this_round, wanted) in enumerate(zip_longest(rounds, expected), 1):
        here, there = Counter(this_round or ()), Counter(wanted or ())
        missing, more = list((there - here).elements()), list((here - there).elements())
        if missing or more:
            wanted_words = in_words(missing[0]) if missing else "no more transfers"
            came = in_words(more[0]) if more else "no such transfer"
            raise PlanError(f"round {number}: expected {wanted_words}; got {came}")


def _check_table(this_round: Round, number: int, ranks: int, total: int) -> None:
    previous: dict[int, list[Transfer]] = {}
    for t in this_round:
        bad = None
        if not (0 <= t.source < ranks and 0 <= t.target < ranks):
            bad = f"expected ranks 0 to {ranks - 1}"
        elif t.source == t.target:
            bad = "expected two different ranks"
        elif t.length < 1 or min(t.source_first, t.target_first) < 0:
            bad = "expected at least one element, from element 0 on"
        elif max(t.source_first, t.target_first) + t.length > total:
            bad = f"expected elements within 0 to {total}"
        else:
            for other in previous.setdefault(t.target, []):
                apart = max(t.target_first, other.target_first) >= min(
                    t.target_first + t.length, other.target_first + other.length
                )
                if not apart and not (t.add and other.add):
                    bad = f"expected one writer, but rank {other.source} writes too"
            previous[t.target].append(t)
        if bad:
            raise PlanError(f"round {number}, {in_words(t)}: {bad}")
    if (np.diff(this_round.source) < 0).any():
        raise PlanError(
            f"round {number}: expected rows sorted by source rank, so that sums are "
            "added in one order everywhere; build the round with make_round"
        )


def _promise(
    collective: str, state: State, root: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Say where (rank, piece) to look, what must be held and from which piece."""
    ranks, pieces, _ = state.held.shape
    look = np.ones((ranks, pieces), bool)
    held = np.ones_like(state.held)
    home = np.tile(np.arange(pieces), (ranks, 1))
    at, own = np.arange(pieces), state.own
    if collective == "reduce":
        look[np.arange(ranks) != root] = False
    elif collective == "reduce_scatter":
        look = own == np.arange(ranks)[:, None]
    elif collective == "broadcast":
        held = np.zeros_like(held)
        held[:, :, root] = 1
    elif collective in ("allgather", "alltoall"):
        held = np.zeros_like(held)
        held[:, at, own] = 1
        if collective == "alltoall" and pieces:
            block = pieces // ranks
            home = np.arange(ranks)[:, None] * block + at % block
    return look, held, home


def _check_end(
    state: State, last_round: int, look: np.ndarray, held: np.ndarray, home: np.ndarray
) -> None:
    for rank, piece, c in np.argwhere(look[..., None] & (state.held != held))[:1]:
        seen = np.flatnonzero(state.held[rank, piece]).tolist()
        number, source, target = state.moved[home[rank, piece], c]
        if state.held[rank, piece, c]:
            wrong = f"rank {c}'s should have been overwritten"
        elif number > 0:
            wrong = f"rank {c}'s moved last in round {number}, "
            wrong += f"from rank {source} to rank {target}, and came no further"
        else:
            wrong = f"rank {c}'s did not move in any of rounds 1 to {last_round}"
        end = _end(state, last_round, rank, piece)
        raise PlanError(f"{end} holds the contributions of ranks {seen}; {wrong}")
    for rank, piece in np.argwhere(look & (state.home != home))[:1]:
        raise PlanError(
            f"{_end(state, last_round, rank, piece)} holds elements from "
            f"{state.edges[state.home[rank, piece]]} on; expected those from "
            f"{state.edges[home[rank, piece]]} on"
        )


def _end(state: State, last_round: int, rank: int, piece: int) -> str:
    number = state.written[rank, piece]
    no_round = f"not written in rounds 1 to {last_round}"
    return (
        f"at the end rank {rank}, elements {state.edges[piece]} to "
        f"{state.edges[piece + 1]} "
        f"({f'written in round {number}' if number else no_round})"
    )
