"""Cutting every shard of a batch once more: parts that one device takes in turn."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_count
from ..errors import InvalidInput
from ..plans.rounds import even_bounds
from .group import Group
from .split import split_batch


def split_in_parts(
    X: Tensor, y: Tensor, devices: Sequence[AnyDevice], group: Group, parts: int
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Split a batch over the devices as `split_batch` does; give the shards by parts.

    Raises `InvalidInput` as that does, and for a shard with fewer examples than parts.
    """
    check_count("accumulate", parts)
    X_shards, y_shards = split_batch(X, y, devices, group)
    if (fewest := min(map(len, X_shards))) < parts:
        raise InvalidInput(
            f"cannot cut {fewest} examples of a device into {parts} parts; use a "
            "larger batch, fewer devices or fewer parts"
        )
    cuts = [[slice(*cut) for cut in even_bounds(len(x), parts)] for x in X_shards]

    def part(shards: Sequence[Tensor], i: int) -> list[Tensor]:
        return [x[mine[i]] for x, mine in zip(shards, cuts, strict=True)]

    return [(part(X_shards, i), part(y_shards, i)) for i in range(parts)]


def by_device(losses: Sequence[Tensor], devices: int) -> list[Tensor]:
    """Put what came part by part in the order of the devices, each with all its parts.

    So processes, whose lists follow each other, have the order of one process.
    """
    return [loss for i in range(devices) for loss in losses[i::devices]]
