"""The two collectives of sharding, on flat vectors: all-gather and reduce-scatter.

`even_bounds` determines the length of every rank's shard, so ranks need not ask each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...backends import backend_of, element_count
from ...backends.protocol import Tensor
from ...comm.allreduce import exchange
from ...comm.collectives import allgather, reduce_scatter
from ...comm.group import Group
from ...events import notify_mark
from ...plans.collectives import ring_allgather
from ...plans.rounds import Round, even_bounds, even_edges


def gather_flat(shards: Sequence[Tensor], size: int, group: Group) -> list[Tensor]:
    """Return the full flat vector of `size` elements, new on every device."""
    B, bounds, flats = backend_of(shards[0]), even_bounds(size, group.size), []
    with B.pause():
        for shard, rank in zip(shards, group.local_ranks, strict=True):
            flat = B.zeros((size,), B.dtype_of(shard), B.device_of(shard))
            B.write_(flat, *bounds[rank], shard)
            flats.append(flat)
    gather_flat_(flats, group)
    return flats


def gather_flat_(flats: Sequence[Tensor], group: Group) -> None:
    """Fill flat vectors in which every device has written its own shard."""
    B, size = backend_of(flats[0]), element_count(flats[0])
    with B.pause():
        if group.engine.point_to_point:
            rounds = _gather_rounds(size, group.size)
            exchange(flats, rounds, group, call="all-gather of shards")
        else:
            bounds = even_bounds(size, group.size)
            own = [bounds[rank] for rank in group.local_ranks]
            shards = [B.read(x, *cut) for x, cut in zip(flats, own, strict=True)]
            for flat, full in zip(flats, allgather(shards, group), strict=True):
                B.write_(flat, 0, size, full)
    notify_mark("all-gather")


def scatter_flat(grads: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Return each device's shard of the sum of flat vectors."""
    with backend_of(grads[0]).pause():
        shards = reduce_scatter(grads, group)
    notify_mark("reduce-scatter")
    return shards


@lru_cache(maxsize=256)  # a training step repeats the same few
def _gather_rounds(size: int, ranks: int) -> list[Round]:
    return [*ring_allgather(np.arange(ranks), even_edges(size, ranks))]
