"""All-reduce algorithms as plans: afterwards every rank holds the sum of all ranks.

Each algorithm is a pure function of the number of ranks and the length of the vector
that every rank holds; it yields rounds (see `rounds.py`). Each element is summed up on
one rank and then copied, so replicas agree bit for bit. Chapters: *data_parallel* (the
star), *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..checks import check_count
from .chunks import even_edges
from .collectives import (
    allgather,
    broadcast,
    reduce,
    reduce_scatter,
    ring_allgather,
    ring_reduce_scatter,
)
from .rounds import Plan, Round, make_round, plan, together


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


@plan
def hierarchical(ranks: int, length: int, per_node: int = 8) -> Iterator[Round]:
    """Reduce-scatter in every node, ring all-reduce across, all-gather in every node.

    Node i holds the ranks from i * per_node on; the last may hold fewer. The vector has
    `per_node` parts; across the nodes, the owners of a part form a ring. Each node
    sends 2 (nodes - 1) / nodes of the vector, however many ranks it has. Raises
    `InvalidInput` for a `per_node` below 1. Source: Jia et al. (2018).
    """
    per_node = check_count("per_node", per_node)
    nodes = np.split(np.arange(ranks), range(per_node, ranks, per_node))
    parts = len(nodes[0])
    edges = even_edges(length, parts)
    owned = [even_edges(parts, len(node)) for node in nodes]  # parts of each rank
    yield from together(
        ring_reduce_scatter(node, edges[own])
        for node, own in zip(nodes, owned, strict=True)
    )
    yield from together(
        _ring_of_owners(nodes, owned, part, edges) for part in range(parts)
    )
    yield from together(
        ring_allgather(node, edges[own]) for node, own in zip(nodes, owned, strict=True)
    )


def _ring_of_owners(
    nodes: list[np.ndarray], owned: list[np.ndarray], part: int, edges: np.ndarray
) -> Iterator[Round]:
    owners = [
        node[np.searchsorted(own, part, side="right") - 1]
        for node, own in zip(nodes, owned, strict=True)
    ]
    size = edges[part + 1] - edges[part]
    pieces = edges[part] + even_edges(size, len(owners))
    ring = np.array(owners)
    yield from ring_reduce_scatter(ring, pieces)
    yield from ring_allgather(ring, pieces)


#: Name -> plan; what `allreduce(data, algorithm)` knows.
ALLREDUCE: dict[str, Plan] = {
    "star": star,
    "tree": tree,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
}
