"""All-reduce algorithms as plans: afterwards every rank holds the sum of all ranks.

Each is a pure function of the number of ranks and the length of their vectors, and
yields rounds. Replicas agree bit for bit, because either one rank sums an element and
the others copy it, or two ranks add the same two partial sums, and a + b = b + a.
Explained in the chapters *data_parallel* (the star) and *allreduce*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

import numpy as np

from ..checks import check_count
from .collectives import (
    allgather,
    broadcast,
    reduce,
    reduce_scatter,
    ring_allgather,
    ring_reduce_scatter,
)
from .rounds import Plan, Round, even_edges, make_round, plan, sort_rows


@plan
def star(ranks: int, length: int) -> Iterator[Round]:
    """Send every vector to rank 0, which sums them and sends the sum back (D2L).

    Two rounds; rank 0 receives and sends (ranks - 1) vectors: it is the bottleneck.
    """
    others = np.arange(1, ranks)
    yield make_round(others, 0, 0, length, add=True)
    yield make_round(0, others, 0, length, add=False)


@plan
def tree(ranks: int, length: int) -> Iterator[Round]:
    """Reduce along a binomial tree to rank 0, then broadcast along the same tree.

    2 ceil(log2 ranks) rounds of whole vectors: few rounds, but many bytes.
    Source: Thakur, Rabenseifner, Gropp (2005).
    """
    yield from reduce(ranks, length)
    yield from broadcast(ranks, length)


@plan
def ring(ranks: int, length: int) -> Iterator[Round]:
    """Cut the vector into one part per rank; send parts around the ring twice.

    2 (ranks - 1) rounds. If ranks divides the length, every rank sends
    2 (ranks - 1) / ranks of the vector, the least possible for the busiest rank where
    ranks do the sums. Source: Patarasuk, Yuan (2009).
    """
    yield from reduce_scatter(ranks, length)
    yield from allgather(ranks, length)


@plan
def recursive_doubling(ranks: int, length: int) -> Iterator[Round]:
    """Exchange whole vectors with the ranks 1, 2, 4, and so on away, and add.

    For a power of two, log2(ranks) rounds of whole vectors, the fewest if a rank gets
    one per round; else two more. Source: Thakur, Rabenseifner, Gropp (2005).
    """
    yield from _folded(_swap_vectors, ranks, length)


@plan
def halving_doubling(ranks: int, length: int) -> Iterator[Round]:
    """Exchange halves with the nearest rank, quarters twice as far, ...; then back.

    2 log2(ranks) rounds and the bytes of the ring if `ranks` is a power of two; if not,
    two more rounds of whole vectors. The largest messages go to the nearest ranks,
    which saves bytes between nodes. Source: Thakur, Rabenseifner, Gropp (2005).
    """
    yield from _folded(_swap_halves, ranks, length)


def _folded(
    swaps: Callable[[np.ndarray, int], Iterator[Round]], ranks: int, length: int
) -> Iterator[Round]:
    """Run `swaps` on the largest power of two of the ranks.

    Each surplus rank first adds its vector to its left neighbor's, which returns the
    sum at the end.
    """
    power = 1 << ranks.bit_length() - 1  # the largest power of two up to `ranks`
    extra = np.arange(1, 2 * (ranks - power), 2)
    yield make_round(extra, extra - 1, 0, length, add=True)
    yield from swaps(np.setdiff1d(np.arange(ranks), extra), length)
    yield make_round(extra - 1, extra, 0, length, add=False)


def _swap_vectors(ranks: np.ndarray, length: int) -> Iterator[Round]:
    place = np.arange(len(ranks))
    for i in range(len(ranks).bit_length() - 1):
        yield make_round(ranks, ranks[place ^ 1 << i], 0, length, add=True)


def _swap_halves(ranks: np.ndarray, length: int) -> Iterator[Round]:
    place, edges = np.arange(len(ranks)), even_edges(length, len(ranks))
    first, halving = np.zeros_like(place), []  # of the block each place reduces
    for i in range(len(ranks).bit_length() - 1):
        half, partner = len(ranks) >> i + 1, place ^ 1 << i
        first = first + half * (place >> i & 1)
        start, size = edges[first], edges[first + half] - edges[first]
        halving.append((ranks[partner], start, size))
        target = start[partner], size[partner]  # the partner reduces the other half
        yield make_round(ranks, ranks[partner], *target, add=True)
    for partner, start, size in reversed(halving):
        yield make_round(ranks, partner, start, size, add=False)


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
    chunks = edges[part] + even_edges(size, len(owners))
    ring = np.array(owners)
    yield from ring_reduce_scatter(ring, chunks)
    yield from ring_allgather(ring, chunks)


def together(plans: Iterable[Iterable[Round]]) -> Iterator[Round]:
    """Run several plans at the same time: round i of the result is round i of each."""
    for rounds in zip_longest(*plans):
        parts = [this_round for this_round in rounds if this_round is not None]
        tables = zip(*(part.columns for part in parts), strict=True)
        yield sort_rows([np.concatenate(column) for column in tables])


#: Name -> plan; what `allreduce(data, algorithm)` knows.
ALLREDUCE: dict[str, Plan] = {
    "star": star,
    "tree": tree,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
}

# The bytes that a link could send while one message starts up: 5 microseconds at 13
# GB/s.
START_UP_BYTES = 64 * 1024


def choose_allreduce(ranks: int, nbytes: int) -> str:
    """Return the algorithm that a model finds fastest for `nbytes` on equal links.

    In the model, a round costs START_UP_BYTES plus the bytes of its busiest rank. Over
    slow links between nodes, `hierarchical` may be faster, but the model does not know
    the nodes.

    >>> [choose_allreduce(8, nbytes) for nbytes in (10**4, 10**6)]
    ['recursive_doubling', 'halving_doubling']
    >>> choose_allreduce(12, 10**7)
    'ring'
    """
    doublings = ranks.bit_length() - 1
    power = 1 << doublings
    fold = 2 * (ranks > power)  # rounds of whole vectors
    costs = {  # rounds, and vectors that the busiest rank sends one after another
        "recursive_doubling": (doublings + fold, doublings + fold),
        "halving_doubling": (2 * doublings + fold, 2 * (power - 1) / power + fold),
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
    }

    def cost(name: str) -> float:
        rounds, vectors = costs[name]
        return rounds * START_UP_BYTES + vectors * nbytes

    return min(costs, key=cost)
