"""All-reduce algorithms as plans: afterwards every rank holds the sum of all ranks.

Each is a pure function of the number of ranks and the length of their vectors, and
yields rounds. An element is summed up on one rank and then copied, so replicas agree
bit for bit. Chapters: *data_parallel* (the star), *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .collectives import allgather, broadcast, reduce, reduce_scatter
from .rounds import Plan, Round, even_edges, make_round, plan


@plan
def star(ranks: int, length: int) -> Iterator[Round]:
    """Everyone sends the whole vector to rank 0, which adds and sends back (D2L).

    Two rounds; rank 0 receives and sends (ranks - 1) vectors: it is the bottleneck.
    """
    others = np.arange(1, ranks)
    yield make_round(others, 0, 0, length, add=True)
    yield make_round(0, others, 0, length, add=False)


@plan
def tree(ranks: int, length: int) -> Iterator[Round]:
    """Add up along a binomial tree to rank 0, then copy back along the same tree.

    2 ceil(log2 ranks) rounds of whole vectors: short in latency, long in bytes.
    Source: Thakur, Rabenseifner, Gropp (2005).
    """
    yield from reduce(ranks, length)
    yield from broadcast(ranks, length)


@plan
def ring(ranks: int, length: int) -> Iterator[Round]:
    """Cut the vector into one part a rank; send parts round the ring, twice.

    2 (ranks - 1) rounds; every rank sends 2 (ranks - 1) / ranks of the vector, the
    least possible. Source: Patarasuk, Yuan (2009).
    """
    yield from reduce_scatter(ranks, length)
    yield from allgather(ranks, length)


@plan
def halving_doubling(ranks: int, length: int) -> Iterator[Round]:
    """Swap halves with a far partner, quarters with a nearer one, ...; then back.

    2 log2(ranks) rounds and the bytes of the ring if `ranks` is a power of two. If not,
    the ranks beyond it first add theirs to a partner and get the sum at the end: two
    more rounds of whole vectors. Source: Thakur, Rabenseifner, Gropp (2005).
    """
    power = 1 << ranks.bit_length() - 1  # the largest power of two up to `ranks`
    rank, beyond = np.arange(power), np.arange(power, ranks)
    edges = even_edges(length, power)
    distances = [power >> i for i in range(1, power.bit_length())]  # ..., 4, 2, 1
    yield make_round(beyond, beyond - power, 0, length, add=True)
    for distance in distances:  # give away the partner's half of what is left
        partner = rank ^ distance
        first = partner // distance * distance
        size = edges[first + distance] - edges[first]
        yield make_round(rank, partner, edges[first], size, add=True)
    for distance in reversed(distances):  # send all that is summed up so far
        first = rank // distance * distance
        size = edges[first + distance] - edges[first]
        yield make_round(rank, rank ^ distance, edges[first], size, add=False)
    yield make_round(beyond - power, beyond, 0, length, add=False)


#: Name -> plan; what `allreduce(data, algorithm)` knows.
ALLREDUCE: dict[str, Plan] = {
    "star": star,
    "tree": tree,
    "ring": ring,
    "halving_doubling": halving_doubling,
}  # `hierarchical.py` adds its own

# What a link could carry while one message starts up: 5 microseconds at 13 GB/s.
START_UP_BYTES = 64 * 1024


def choose_allreduce(ranks: int, nbytes: int) -> str:
    """Name the algorithm for vectors of `nbytes` bytes: ring or halving_doubling.

    A power of two: halving_doubling, with the ring's bytes in fewer rounds. Otherwise
    its fold sends about one more vector each way, and the ring has more rounds: it pays
    from START_UP_BYTES for each extra round on one way. By the model, no algorithm but
    `hierarchical` is quicker by more than 2 % (tests/pure).

    >>> [choose_allreduce(ranks, 10**6) for ranks in (4, 6, 8, 60)]
    ['halving_doubling', 'ring', 'halving_doubling', 'halving_doubling']
    """
    if ranks & (ranks - 1) == 0:
        return "halving_doubling"
    extra_rounds = (ranks - 1) - (ranks - 1).bit_length()  # reducing; gathering as many
    return "ring" if nbytes >= extra_rounds * START_UP_BYTES else "halving_doubling"
