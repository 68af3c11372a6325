"""Cutting a batch into shards, one a device, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends import backend_of, nbytes
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_count, check_ids, check_list
from ..errors import InvalidInput, plural
from ..events import notify_load, notify_work, observers
from ..plans.rounds import even_bounds
from .group import Group, group_for


def load(x: Tensor, device: AnyDevice) -> Tensor:
    """Copy `x` from the host to a device, into storage of its own."""
    copy = backend_of(x).copy_to(x, device)
    if observers.get():
        notify_load(nbytes(copy))
    return copy


def check_batch(X: Tensor, y: Tensor, vocabulary: int = 0) -> Backend:
    """Raise unless X and y have as many examples and y is whole numbers.

    With a vocabulary, X holds ids below it, which are checked if X lies on the CPU.
    That the labels are below the number of classes is seen beside the logits. Returns
    the backend of the batch.
    """
    B = backend_of(X)
    _check_lengths(X, y)
    if "int" not in B.dtype_of(y):
        raise InvalidInput(
            f"expected labels y that are whole numbers, got {B.dtype_of(y)}; convert "
            "them to int64"
        )
    if vocabulary and B.device_of(X) == "cpu":
        check_ids(B.numpy(X), vocabulary)
    return B


def _check_lengths(X: Tensor, y: Tensor) -> None:
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )


def split_batch(
    X: Tensor, y: Tensor, devices: Sequence[AnyDevice], group: Group | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Split the batch X, y over the devices (D2L's `split_batch`).

    X (n, ...) and y (n, ...) are the *whole* batch; shard i holds n // k examples, and
    the first n % k shards hold one more. Nothing is dropped, and every shard is a copy
    on its device. Raises `InvalidInput` for no devices, for different lengths of X and
    y and for fewer examples than devices.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    group = group_for(len(devices), group)
    _check_lengths(X, y)
    if len(X) < group.size:
        raise InvalidInput(
            f"cannot split {plural(len(X), 'example')} over "
            f"{plural(group.size, 'device')}; use at least "
            f"{plural(group.size, 'example')} or fewer devices"
        )
    bounds = even_bounds(len(X), group.size)
    mine = [bounds[rank] for rank in group.local_ranks]
    pairs = list(zip(mine, devices, strict=True))
    X_shards, y_shards, wait = [], [], backend_of(X).synchronize
    for (first, last), device in pairs:
        with notify_work([device], "load", wait):
            X_shards.append(load(X[first:last], device))
            y_shards.append(load(y[first:last], device))
    return X_shards, y_shards


def split_in_parts(
    X: Tensor, y: Tensor, devices: Sequence[AnyDevice], group: Group, parts: int
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Split a batch over the devices, and each shard into parts.

    Returns for each part the (X, y) of all local devices. Raises `InvalidInput` as
    `split_batch` does, and for a shard with fewer examples than parts.
    """
    check_count("accumulate", parts)
    X_shards, y_shards = split_batch(X, y, devices, group)
    if parts == 1:
        return [(X_shards, y_shards)]
    if (fewest := min(map(len, X_shards))) < parts:
        raise InvalidInput(
            f"cannot split the {fewest} examples of a device into {parts} parts; use a "
            "larger batch, fewer devices or fewer parts"
        )
    bounds = [even_bounds(len(x), parts) for x in X_shards]

    def part(shards: Sequence[Tensor], i: int) -> list[Tensor]:
        return [x[slice(*cut[i])] for x, cut in zip(shards, bounds, strict=True)]

    return [(part(X_shards, i), part(y_shards, i)) for i in range(parts)]


def by_device(losses: Sequence[Tensor], devices: int) -> list[Tensor]:
    """Reorder losses from part by part to device by device.

    Processes, whose lists are concatenated, then have the order of one process.
    """
    return [loss for i in range(devices) for loss in losses[i::devices]]
