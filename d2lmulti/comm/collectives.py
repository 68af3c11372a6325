"""Collectives: run a plan on real tensors, one tensor per local rank, in place."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..cluster.ledger import open_ledgers
from ..errors import InvalidInput
from ..plans.allreduce import ALLREDUCE
from .group import Group, group_for
from .split import element_count, itemsize


def allreduce(
    data: Sequence[Tensor], algorithm: str = "star", group: Group | None = None
) -> None:
    """Replace every entry of `data` by the sum of all ranks' entries, in place.

    `data` holds one tensor per local rank, in rank order, all of one shape and dtype;
    a tensor's position is its rank. Every entry is overwritten in its own storage, also
    that of a gradient, so all replicas see the sum (rebinding `data[i]` would not reach
    them). Raises `InvalidInput` for an empty list, entries that differ in shape, dtype
    or framework, an entry given twice, and an unknown algorithm.
    """
    if algorithm not in ALLREDUCE:
        raise InvalidInput(
            f"expected one of {', '.join(ALLREDUCE)} as algorithm, got {algorithm!r}"
        )
    _check(data)
    group = group_for(len(data), group)
    size = itemsize(data[0])
    for round in ALLREDUCE[algorithm](group.size, element_count(data[0])):
        group.transport.exchange(data, round)
        for ledger in open_ledgers():
            ledger.count_round(round, size)


def _check(data: Sequence[Tensor]) -> None:
    if not isinstance(data, (list, tuple)) or not data:
        came = "an empty one" if isinstance(data, (list, tuple)) else type(data).__name__
        raise InvalidInput(
            f"expected a list with one tensor per device, got {came}; pass "
            "[tensor of rank 0, tensor of rank 1, ...]"
        )
    B = backend_of(data[0])
    first = (tuple(data[0].shape), B.dtype_of(data[0]))
    for rank, x in enumerate(data):
        other = backend_of(x)
        if other is not B:
            raise InvalidInput(
                f"expected tensors of one framework, got {B.name} on rank 0 and "
                f"{other.name} on rank {rank}; convert with B.array(other.numpy(x))"
            )
        if (tuple(x.shape), B.dtype_of(x)) != first:
            raise InvalidInput(
                f"expected the same shape and dtype on every rank, got {first[0]} "
                f"{first[1]} on rank 0 and {tuple(x.shape)} {B.dtype_of(x)} on rank "
                f"{rank}; every rank must pass the same parameter's gradient"
            )
    if len({id(x) for x in data}) < len(data):
        raise InvalidInput(
            "expected a tensor of its own for every rank, got one tensor twice; give "
            "each device its own copy with get_params or B.copy_to"
        )
