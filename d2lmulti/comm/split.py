"""Cutting a batch into shards, one a device, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor
from ..backends.sizes import nbytes
from ..checks import check_list
from ..cluster.ledger import open_ledgers
from ..errors import InvalidInput
from ..plans.chunks import even_bounds
from .group import Group, group_for


def split_batch(
    X: Tensor, y: Tensor, devices: Sequence[AnyDevice], group: Group | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Split the batch X, y over the devices (D2L's `split_batch`).

    X (n, ...) and y (n, ...) are the *whole* batch; shard i holds n // k examples, and
    the first n % k shards hold one more. Nothing is dropped, and every shard is a copy
    on its device. Raises `InvalidInput` for no devices, for different lengths of X and
    y and for fewer examples than devices.
    """
    check_list("devices", devices, "devices", cure="use devices(1)")
    group = group_for(len(devices), group)
    for x in (X, y):
        backend_of(x)  # refuses what is no tensor
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )
    if len(X) < group.size:
        raise InvalidInput(
            f"cannot split {len(X)} examples over {group.size} devices; use at least "
            f"{group.size} examples or fewer devices"
        )
    bounds = [even_bounds(len(X), group.size)[rank] for rank in group.local_ranks]
    return _scatter(X, bounds, devices), _scatter(y, bounds, devices)


def _scatter(
    x: Tensor, bounds: Sequence[tuple[int, int]], devices: Sequence[AnyDevice]
) -> list[Any]:
    B = backend_of(x)
    shards = [
        B.copy_to(x[first:last], device)
        for (first, last), device in zip(bounds, devices, strict=True)
    ]
    for ledger in open_ledgers():
        ledger.loaded += sum(nbytes(shard) for shard in shards)
    return shards
