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

from ..errors import InvalidInput
from .chunks import even_edges
from .rounds import Round, Transfer


class PlanError(InvalidInput):
    """A plan is wrong; the message names the round (from 1), the rank and the part."""


class _State:
    """What every rank holds, piece by piece; no transfer begins or ends in a piece."""

    def __init__(self, ranks: int, edges: np.ndarray) -> None:
        pieces = len(edges) - 1
        self.edges = edges
        # held[rank, piece, c]: how often the contribution of rank c is in there
        self.held = np.zeros((ranks, pieces, ranks), np.int32)
        # home[rank, piece]: which piece of the contributors' vectors it comes from
        self.home = np.tile(np.arange(pieces), (ranks, 1))
        # moved[piece, c]: the last (round, source, target) that moved c's contribution
        self.moved = np.full((pieces, ranks, 3), -1)
        self.written = np.zeros((ranks, pieces), np.int32)  # in which round, last


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
    moving = collective == "alltoall"  # parts change place: look at every element
    total = length * ranks if moving else length
    for number, round in enumerate(table, 1):
        _check_table(round, number, ranks, total)
    cut = np.arange(total + 1) if moving else _cut(table, ranks, total)
    state = _State(ranks, cut)
    own = _own_part(state, ranks, total)
    every = np.arange(ranks)
    if collective == "allgather":
        state.held[own, np.arange(len(own)), own] = 1
    else:
        state.held[every, :, every] = 1
    for number, round in enumerate(table, 1):
        _play(round, number, state)
    _check_end(state, len(table), *_promise(collective, state, own, root))


def compare(rounds: Iterable[Round], expected: Iterable[Round]) -> None:
    """Check that two plans are the same, transfer by transfer.

    Stricter than `verify`: in a ring, a partial sum that passes over one neighbour may
    still end right, but it went another way. Raises `PlanError` at the first round that
    differs.
    """
    for number, (round, wanted) in enumerate(zip_longest(rounds, expected), 1):
        here, there = Counter(round or ()), Counter(wanted or ())
        missing, more = list((there - here).elements()), list((here - there).elements())
        if missing or more:
            expects = f"expected {_name(missing[0])}" if missing else "expected no more"
            came = f"got {_name(more[0])}" if more else "got no such transfer"
            raise PlanError(f"round {number}: {expects}; {came}")


def _cut(table: list[Round], ranks: int, total: int) -> np.ndarray:
    edges = [even_edges(total, ranks)]
    for r in table:
        edges += [r.source_first, r.source_first + r.length]
        if (r.source_first != r.target_first).any():
            return np.arange(total + 1)  # what moves may be cut anywhere later
    return np.unique(np.concatenate(edges))


def _own_part(state: _State, ranks: int, total: int) -> np.ndarray:
    """For every piece, the rank whose part (by `even_bounds`) it belongs to."""
    return np.searchsorted(even_edges(total, ranks), state.edges[:-1], "right") - 1


def _check_table(round: Round, number: int, ranks: int, total: int) -> None:
    previous: dict[int, list[Transfer]] = {}
    for t in round:
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
            raise PlanError(f"round {number}, {_name(t)}: {bad}")
    if (np.diff(round.source) < 0).any():
        raise PlanError(
            f"round {number}: expected rows sorted by source rank, so that sums are "
            "added in one order everywhere; build the round with make_round"
        )


def _name(t: Transfer) -> str:
    part = f"elements {t.source_first} to {t.source_first + t.length}"
    if t.source_first != t.target_first:
        part += f" into those from {t.target_first} on"
    return f"rank {t.source} to rank {t.target}, {part}"


def _play(round: Round, number: int, state: _State) -> None:
    cut = [
        (t, *np.searchsorted(state.edges, (t.source_first, t.target_first)), t.length)
        for t in round
    ]
    moves = []
    for t, first, to, _ in cut:
        count = np.searchsorted(state.edges, t.source_first + t.length) - first
        held = state.held[t.source, first : first + count].copy()
        home = state.home[t.source, first : first + count].copy()
        if not held.any(axis=1).all():
            raise PlanError(
                f"round {number}, {_name(t)}: the source has nothing there yet; send "
                "a part only after it has arrived"
            )
        moves.append((t, slice(to, to + count), held, home))
    for t, piece, held, home in moves:
        if t.add:
            if (state.home[t.target, piece] != home).any():
                raise PlanError(
                    f"round {number}, {_name(t)}: adds elements that come from another "
                    "part of the vector; add only what belongs to the same part"
                )
            state.held[t.target, piece] += held
            twice = np.argwhere(state.held[t.target, piece] > 1)
            if len(twice):
                raise PlanError(
                    f"round {number}, {_name(t)}: the contribution of rank "
                    f"{twice[0][1]} is added a second time"
                )
        else:
            state.held[t.target, piece] = held
            state.home[t.target, piece] = home
        state.written[t.target, piece] = number
        at, contributor = np.nonzero(held)
        state.moved[home[at], contributor] = (number, t.source, t.target)


def _promise(
    collective: str, state: _State, own: np.ndarray, root: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Say where (rank, piece) to look, what must be held and from which piece."""
    ranks, pieces, _ = state.held.shape
    look = np.ones((ranks, pieces), bool)
    held = np.ones_like(state.held)
    home = np.tile(np.arange(pieces), (ranks, 1))
    at = np.arange(pieces)
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
    elif collective != "allreduce":
        raise InvalidInput(
            "expected allreduce, reduce, broadcast, reduce_scatter, allgather or "
            f"alltoall as collective, got {collective!r}"
        )
    return look, held, home


def _check_end(
    state: _State, last_round: int, look: np.ndarray, held: np.ndarray, home: np.ndarray
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


def _end(state: _State, last_round: int, rank: int, piece: int) -> str:
    number = state.written[rank, piece]
    no_round = f"not written in rounds 1 to {last_round}"
    return (
        f"at the end rank {rank}, elements {state.edges[piece]} to "
        f"{state.edges[piece + 1]} "
        f"({f'written in round {number}' if number else no_round})"
    )
