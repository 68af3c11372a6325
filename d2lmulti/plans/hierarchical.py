"""All-reduce in nodes of several ranks: few bytes on the slow links between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import numpy as np

from ..checks import check_count
from .allreduce import ALLREDUCE
from .collectives import ring_allgather, ring_reduce_scatter
from .rounds import Round, even_edges, plan, sort_rows


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


def together(plans: Iterable[Iterable[Round]]) -> Iterator[Round]:
    """Run several plans at the same time: round i of the result is round i of each."""
    for rounds in zip_longest(*plans):
        parts = [this_round for this_round in rounds if this_round is not None]
        tables = zip(*(part.columns for part in parts), strict=True)
        yield sort_rows([np.concatenate(column) for column in tables])


ALLREDUCE["hierarchical"] = hierarchical
