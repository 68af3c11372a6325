"""Play a plan without tensors: which ranks' contributions does every rank hold?

The state counts, for every rank and every piece of its vector, how many times each
rank's contribution is in it. Proofs (`verify.py`) and pictures are made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ..errors import PlanError
from .rounds import Round, Transfer, even_edges


class State:
    """What every rank holds, piece by piece; no transfer begins or ends in a piece."""

    def __init__(self, ranks: int, edges: np.ndarray) -> None:
        pieces = len(edges) - 1
        self.edges = edges
        # own[piece]: the rank whose part, by `even_bounds`, the piece belongs to
        parts = even_edges(int(edges[-1]), ranks)
        self.own = np.searchsorted(parts, edges[:-1], "right") - 1
        # held[rank, piece, c]: how often the contribution of rank c is in there
        self.held = np.zeros((ranks, pieces, ranks), np.int32)
        # home[rank, piece]: which piece of the contributors' vectors it comes from
        self.home = np.tile(np.arange(pieces), (ranks, 1))
        # moved[piece, c]: the last (round, source, target) that moved c's contribution
        self.moved = np.full((pieces, ranks, 3), -1)
        self.written = np.zeros((ranks, pieces), np.int32)  # in which round, last


def states(
    rounds: Iterable[Round], ranks: int, length: int, collective: str = "allreduce"
) -> Iterator[State]:
    """Yield the state before the first round and after each round (one live object).

    Raises `PlanError` for a part that is sent before it is there, a contribution added
    a second time, and elements of different parts added up.
    """
    table = list(rounds)
    if collective == "alltoall":  # blocks change place: look at every element
        edges = np.arange(length * ranks + 1)
    else:
        edges = _cut(table, ranks, length)
    state = State(ranks, edges)
    every = np.arange(ranks)
    if collective == "allgather":
        state.held[state.own, np.arange(len(state.own)), state.own] = 1
    else:
        state.held[every, :, every] = 1
    yield state
    for number, this_round in enumerate(table, 1):
        _carry_out(this_round, number, state)
        yield state


def snapshots(
    rounds: Iterable[Round], ranks: int, length: int, collective: str = "allreduce"
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return edges and, before the first round and after each, held[rank, piece, c].

    Neighbouring pieces that share their fate are one piece here: good for pictures.
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
            return np.arange(total + 1)  # what moves may be cut anywhere later
    return np.unique(np.concatenate(edges))


def _carry_out(this_round: Round, number: int, state: State) -> None:
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
