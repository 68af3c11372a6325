"""What sharding sends: the parts of one flat vector, gathered or summed up.

`even_bounds` says how long every rank's part is, so no rank has to ask another. On an
engine that can do so the messages are under way until the `Work` is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...backends import backend_of
from ...backends.protocol import Tensor, element_count
from ...comm.collectives import allgather, reduce_scatter
from ...comm.group import Group, Work
from ...comm.under_way import Eager, at_once, start_exchange
from ...events import mark
from ...plans.collectives import ring_allgather, ring_reduce_scatter
from ...plans.rounds import Round, even_bounds, even_edges


def start_gather(parts: Sequence[Tensor], size: int, group: Group) -> Work:
    """Begin to give every device the whole of a flat vector, new; with a mark."""
    B, bounds, wholes = backend_of(parts[0]), even_bounds(size, group.size), []
    with B.pause():
        for part, rank in zip(parts, group.local_ranks, strict=True):
            whole = B.zeros((size,), B.dtype_of(part), B.device_of(part))
            B.write_(whole, *bounds[rank], part)
            wholes.append(whole)
    work = start_share(wholes, group)

    def end() -> list[Tensor]:
        work.wait()
        return wholes

    return Work(end)


def start_share(
    wholes: Sequence[Tensor], group: Group, call: str = "all-gather of parts"
) -> Work:
    """Begin to fill flat vectors of which every device has its own part; a mark.

    Of several that begin together one `call` is enough for the ranks to compare.
    """
    if not group.engine.point_to_point:
        return _share_natively(wholes, group)
    eager = group.is_distributed and isinstance(group.engine, Eager)
    rounds = _gathering(element_count(wholes[0]), group.size, eager)
    with backend_of(wholes[0]).pause():
        work = start_exchange(wholes, rounds, group, call)
    mark("all-gather")
    return work


def _share_natively(wholes: Sequence[Tensor], group: Group) -> Work:
    """Do it with the engine's own all-gather, where it has no messages."""
    B, size = backend_of(wholes[0]), element_count(wholes[0])
    bounds = even_bounds(size, group.size)
    with B.pause():
        pairs = zip(wholes, group.local_ranks, strict=True)
        parts = [B.copy_to(B.read(x, *bounds[r]), B.device_of(x)) for x, r in pairs]
        for x, whole in zip(wholes, allgather(parts, group), strict=True):
            B.write_(x, 0, size, whole)
    mark("all-gather")
    return Work()


def start_scatter(grads: Sequence[Tensor], group: Group) -> Work:
    """Begin to give every device its part of the sum of flat vectors; with a mark.

    They are the working memory: what of them is not a device's own is lost.
    """
    B, size = backend_of(grads[0]), element_count(grads[0])
    if not group.engine.point_to_point:
        with B.pause():
            parts = reduce_scatter(grads, group)
        mark("reduce-scatter")
        return Work(lambda: parts)
    rounds = _scattering(size, group.size)
    with B.pause():
        work = start_exchange(grads, rounds, group, "sum of parts")
    mark("reduce-scatter")
    bounds = even_bounds(size, group.size)

    def end() -> list[Tensor]:
        work.wait()
        pairs = zip(grads, group.local_ranks, strict=True)
        return [B.read(x, *bounds[rank]) for x, rank in pairs]

    return Work(end)


@lru_cache(maxsize=256)  # a step repeats the same few
def _gathering(size: int, ranks: int, eager: bool) -> list[Round]:
    edges = even_edges(size, ranks)
    if eager:
        return [at_once(edges)]
    return [*ring_allgather(np.arange(ranks), edges)]


@lru_cache(maxsize=256)
def _scattering(size: int, ranks: int) -> list[Round]:
    return [*ring_reduce_scatter(np.arange(ranks), even_edges(size, ranks))]
