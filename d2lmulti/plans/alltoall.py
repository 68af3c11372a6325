"""All-to-all as a plan: every rank has a block for every other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .rounds import Round, make_round, plan


@plan
def alltoall(ranks: int, length: int) -> Iterator[Round]:
    """Swap blocks: block t of rank s goes to block s of rank t (a transposition).

    Every rank holds `ranks` blocks of `length` elements. It sends ranks - 1 blocks, one
    after the other, and is never idle (pairwise exchange). One vector a rank is memory
    enough: what arrives takes the room of what leaves. So two ranks swap; an even
    number of ranks meet in pairs, in ranks - 1 rounds. An odd number cannot be paired
    off: there a rank swaps with two, to its left and right, in half as many rounds.
    """
    rank, n = np.arange(ranks), ranks - 1
    if ranks % 2:
        for distance in range(1, ranks // 2 + 1):
            left, right = (rank - distance) % ranks, (rank + distance) % ranks
            yield _swap(np.tile(rank, 2), np.concatenate([left, right]), length)
        return
    for k in range(n):  # a round-robin tournament: s meets t where s + t = k modulo n
        partner = (k - rank) % n
        partner[n] = np.flatnonzero(partner == rank)[0]  # who would meet himself
        partner[partner[n]] = n
        yield _swap(rank, partner, length)


def _swap(rank: np.ndarray, partner: np.ndarray, length: int) -> Round:
    first, target_first = partner * length, rank * length
    return make_round(rank, partner, first, length, False, target_first)
