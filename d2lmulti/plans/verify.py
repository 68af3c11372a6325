"""Verify a plan as data, without running a tensor.

The state counts, for every rank and every piece of its vector, how many times each
rank's contribution is in it. A plan is correct if every checked count ends at the value
that the collective promises. The counts do not depend on the input, so one check of
(ranks, length) covers all values, dtypes, and frameworks. Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..checks import MAX_RANKS, check_choice, check_count
from ..errors import PlanError
from .rounds import MAX_ELEMENTS, Round, Transfer, even_edges

COLLECTIVES = (
    "allreduce",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "allgather",
    "alltoall",
)


def verify(
    rounds: Iterable[Round],
    ranks: int,
    length: int,
    collective: str = "allreduce",
    root: int = 0,
) -> None:
    """Check that `rounds` do what `collective` promises for (ranks, length).

    `collective` is allreduce, reduce, broadcast, reduce_scatter, allgather, or alltoall
    (there, `length` is that of a block). Raises `PlanError` for a contribution that is
    missing or counted twice, and for a round that is not a legal table. Memory grows
    with ranks^2 times the number of parts: meant for up to about a hundred ranks.
    """
    table = list(rounds)
    ranks = check_count("ranks", ranks, max=MAX_RANKS)
    length = check_count("length", length, min=0, max=MAX_ELEMENTS)
    root = check_count("root", root, min=0, max=ranks - 1)
    check_choice("collective", collective, COLLECTIVES)
    total = length * ranks if collective == "alltoall" else length
    for number, this_round in enumerate(table, 1):
        _check_table(this_round, number, ranks, total)
    *_, state = states(table, ranks, length, collective)
    _check_end(state, len(table), *_promise(collective, state, root))


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
    """Return which (rank, piece) to check, the expected counts and source pieces."""
    ranks, pieces, _ = state.held.shape
    checked = np.ones((ranks, pieces), bool)
    held = np.ones_like(state.held)
    home = np.tile(np.arange(pieces), (ranks, 1))
    numbers, owners = np.arange(pieces), state.own
    if collective == "reduce":
        checked[np.arange(ranks) != root] = False
    elif collective == "reduce_scatter":
        checked = owners == np.arange(ranks)[:, None]
    elif collective == "broadcast":
        held = np.zeros_like(held)
        held[:, :, root] = 1
    elif collective in ("allgather", "alltoall"):
        held = np.zeros_like(held)
        held[:, numbers, owners] = 1
        if collective == "alltoall" and pieces:
            block = pieces // ranks
            home = np.arange(ranks)[:, None] * block + numbers % block
    return checked, held, home


def _check_end(
    state: State,
    last_round: int,
    checked: np.ndarray,
    held: np.ndarray,
    home: np.ndarray,
) -> None:
    for rank, piece, c in np.argwhere(checked[..., None] & (state.held != held))[:1]:
        seen = np.flatnonzero(state.held[rank, piece]).tolist()
        number, source, target = state.moved[home[rank, piece], c]
        if state.held[rank, piece, c]:
            wrong = f"rank {c}'s should have been overwritten"
        elif number > 0:
            wrong = f"rank {c}'s moved last in round {number}, "
            wrong += f"from rank {source} to rank {target}, and came no further"
        else:
            wrong = f"rank {c}'s did not move in {last_round} rounds"
        end = _end(state, last_round, rank, piece)
        raise PlanError(f"{end} holds the contributions of ranks {seen}; {wrong}")
    for rank, piece in np.argwhere(checked & (state.home != home))[:1]:
        raise PlanError(
            f"{_end(state, last_round, rank, piece)} holds elements from "
            f"{state.edges[state.home[rank, piece]]} on; expected those from "
            f"{state.edges[home[rank, piece]]} on"
        )


def _end(state: State, last_round: int, rank: int, piece: int) -> str:
    number = state.written[rank, piece]
    no_round = f"not written in {last_round} rounds"
    return (
        f"at the end rank {rank}, elements {state.edges[piece]} to "
        f"{state.edges[piece + 1]} "
        f"({f'written in round {number}' if number else no_round})"
    )


# -- simulating a plan without tensors -------------------------------------------------


class State:
    """The contents of every rank by piece; no transfer begins or ends in a piece."""

    def __init__(self, ranks: int, edges: np.ndarray) -> None:
        pieces = len(edges) - 1
        self.edges = edges
        # own[piece]: the rank whose part, by `even_bounds`, the piece belongs to
        parts = even_edges(int(edges[-1]), ranks)
        self.own = np.searchsorted(parts, edges[:-1], "right") - 1
        # held[rank, piece, c]: how often it contains the contribution of rank c
        self.held = np.zeros((ranks, pieces, ranks), np.int32)
        # home[rank, piece]: the piece of the contributors' vectors that it holds
        self.home = np.tile(np.arange(pieces), (ranks, 1))
        # moved[piece, c]: the last (round, source, target) that moved c's contribution
        self.moved = np.full((pieces, ranks, 3), -1)
        # written[rank, piece]: the last round that wrote it
        self.written = np.zeros((ranks, pieces), np.int32)


def states(
    rounds: Iterable[Round], ranks: int, length: int, collective: str = "allreduce"
) -> Iterator[State]:
    """Yield the state before the first round and after each round (one live object).

    Raises `PlanError` for a part that is sent before it has arrived, a contribution
    added a second time, and sums of different parts.
    """
    table = list(rounds)
    if collective == "alltoall":  # blocks move within vectors: track every element
        edges = np.arange(length * ranks + 1)
    else:
        edges = _cut(table, ranks, length)
    state = State(ranks, edges)
    all_ranks = np.arange(ranks)
    if collective == "allgather":
        state.held[state.own, np.arange(len(state.own)), state.own] = 1
    else:
        state.held[all_ranks, :, all_ranks] = 1
    yield state
    for number, this_round in enumerate(table, 1):
        _apply_round(this_round, number, state)
        yield state


def snapshots(
    rounds: Iterable[Round], ranks: int, length: int, collective: str = "allreduce"
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return edges and, before the first round and after each, held[rank, piece, c].

    Neighboring pieces that are equal in all states are merged: fewer to draw.
    """
    frames = []
    for state in states(rounds, ranks, length, collective):
        edges = state.edges
        frames.append(state.held.copy())
    story = np.stack(frames)  # (frames, ranks, pieces, contributors)
    differs = (story[:, :, 1:] != story[:, :, :-1]).any(axis=(0, 1, 3))
    first = np.concatenate([[0], np.flatnonzero(differs) + 1])
    return np.append(edges[first], edges[-1]), list(story[:, :, first])


def in_words(t: Transfer) -> str:
    """Name a transfer: ranks and elements."""
    part = f"elements {t.source_first} to {t.source_first + t.length}"
    if t.source_first != t.target_first:
        part += f" into those from {t.target_first} on"
    return f"rank {t.source} to rank {t.target}, {part}"


def _cut(table: list[Round], ranks: int, total: int) -> np.ndarray:
    edges = [even_edges(total, ranks)]
    for r in table:
        edges += [r.source_first, r.source_first + r.length]
        if (r.source_first != r.target_first).any():
            return np.arange(total + 1)  # moved elements may be cut anywhere later
    return np.unique(np.concatenate(edges))


def _apply_round(this_round: Round, number: int, state: State) -> None:
    moves = []
    for t in this_round:  # all read the state before the round
        bounds = (t.source_first, t.source_first + t.length, t.target_first)
        first, last, to = np.searchsorted(state.edges, bounds)
        held = state.held[t.source, first:last].copy()
        home = state.home[t.source, first:last].copy()
        if not held.any(axis=1).all():
            why = "the source has nothing there yet; send a part after it has arrived"
            raise PlanError(f"round {number}, {in_words(t)}: {why}")
        moves.append((t, slice(to, to + last - first), held, home))
    for t, pieces, held, home in moves:
        if not t.add:
            state.held[t.target, pieces] = held
            state.home[t.target, pieces] = home
        elif (state.home[t.target, pieces] != home).any():
            why = "adds elements of another part of the vector; add only the same part"
            raise PlanError(f"round {number}, {in_words(t)}: {why}")
        else:
            state.held[t.target, pieces] += held
            twice = np.argwhere(state.held[t.target, pieces] > 1)
            if len(twice):
                why = f"the contribution of rank {twice[0][1]} is added a second time"
                raise PlanError(f"round {number}, {in_words(t)}: {why}")
        state.written[t.target, pieces] = number
        at, contributor = np.nonzero(held)
        state.moved[home[at], contributor] = (number, t.source, t.target)
