"""Broadcast, reduce, reduce-scatter, all-gather, and all-to-all as plans.

All-reduce is built from the same tree and the same ring (see `allreduce.py`). A vector
is cut into one *part* per rank by `even_bounds`; parts may be uneven or empty.
Explained in the chapter *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..checks import check_count
from .rounds import Round, even_edges, make_round, plan


@plan
def reduce(ranks: int, length: int, root: int = 0) -> Iterator[Round]:
    """Sum every rank's vector on `root`, along a binomial tree.

    ceil(log2 ranks) rounds: half of the remaining ranks send to the other half.
    """
    root = check_count("root", root, min=0, max=ranks - 1)
    distance = 1
    while distance < ranks:
        sender = np.arange(distance, ranks, 2 * distance)  # counted from the root
        receiver = sender - distance
        yield make_round(
            (sender + root) % ranks, (receiver + root) % ranks, 0, length, add=True
        )
        distance *= 2


@plan
def broadcast(ranks: int, length: int, root: int = 0) -> Iterator[Round]:
    """Copy the vector of `root` to every rank: the tree of `reduce`, run backward."""
    for this_round in reversed(list(reduce(ranks, length, root))):
        yield make_round(this_round.target, this_round.source, 0, length, add=False)


@plan
def reduce_scatter(ranks: int, length: int) -> Iterator[Round]:
    """Sum part r of all ranks on rank r, along a ring.

    ranks - 1 rounds; every rank sends all parts but its own, one per round.
    """
    return ring_reduce_scatter(np.arange(ranks), even_edges(length, ranks))


@plan
def allgather(ranks: int, length: int) -> Iterator[Round]:
    """Copy part r of rank r to all ranks, along a ring."""
    return ring_allgather(np.arange(ranks), even_edges(length, ranks))


@plan
def alltoall(ranks: int, length: int) -> Iterator[Round]:
    """Swap blocks: block t of rank s goes to block s of rank t (a transposition).

    Every rank holds `ranks` blocks of `length` elements and sends all but its own. No
    second vector is needed, because ranks swap blocks in pairs: an arriving block
    replaces the block that was sent. An even number of ranks forms pairs in each of
    ranks - 1 rounds. An odd number cannot be paired, so in each round a rank swaps with
    two others, to its left and to its right, and half as many rounds are enough.
    """
    rank, n = np.arange(ranks), ranks - 1
    if ranks % 2:
        for distance in range(1, ranks // 2 + 1):
            left, right = (rank - distance) % ranks, (rank + distance) % ranks
            yield _swap(np.tile(rank, 2), np.concatenate([left, right]), length)
        return
    for k in range(n):  # a round-robin tournament: s and t swap if s + t = k modulo n
        partner = (k - rank) % n
        partner[n] = np.flatnonzero(partner == rank)[0]  # it would swap with itself
        partner[partner[n]] = n
        yield _swap(rank, partner, length)


def _swap(rank: np.ndarray, partner: np.ndarray, length: int) -> Round:
    first, target_first = partner * length, rank * length
    return make_round(rank, partner, first, length, False, target_first)


def ring_reduce_scatter(ring: np.ndarray, edges: np.ndarray) -> Iterator[Round]:
    """Sum part i, from edges[i] up to edges[i + 1], on the i-th rank of the ring.

    Part i starts at rank i + 1, and each rank on its way adds its contribution.
    """
    n, right = len(ring), np.roll(ring, -1)
    first, length = _twice(edges[:-1]), _twice(np.diff(edges))
    for step in range(1, n):  # the i-th rank sends part i - step
        turned = slice(n - step, 2 * n - step)
        yield make_round(ring, right, first[turned], length[turned], add=True)


def ring_allgather(ring: np.ndarray, edges: np.ndarray) -> Iterator[Round]:
    """Send part i, which the i-th rank of the ring holds, once around the ring."""
    n, right = len(ring), np.roll(ring, -1)
    first, length = _twice(edges[:-1]), _twice(np.diff(edges))
    for step in range(n - 1):  # the i-th rank sends part i - step
        turned = slice(n - step, 2 * n - step)
        yield make_round(ring, right, first[turned], length[turned], add=False)


def _twice(values: np.ndarray) -> np.ndarray:
    return np.concatenate([values, values])  # so that every rotation is a slice
