"""Cutting a batch into shards, one a device, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.protocol import AnyDevice, Tensor, backend_of, nbytes
from ..checks import check_list
from ..events import loaded, observers, working
from ..plans.rounds import even_bounds
from .checks import check_split
from .group import Group, group_for


def load(x: Tensor, device: AnyDevice) -> Tensor:
    """Copy `x` from the host to a device, into storage of its own."""
    copy = backend_of(x).copy_to(x, device)
    if observers.get():
        loaded(nbytes(copy))
    return copy


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
    check_split(X, y, group.size)
    bounds = even_bounds(len(X), group.size)
    mine = [bounds[rank] for rank in group.local_ranks]
    pairs = list(zip(mine, devices, strict=True))
    X_shards, y_shards, wait = [], [], backend_of(X).synchronize
    for (first, last), device in pairs:
        with working([device], "load", wait):
            X_shards.append(load(X[first:last], device))
            y_shards.append(load(y[first:last], device))
    return X_shards, y_shards
