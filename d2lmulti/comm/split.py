"""Cutting a batch into shards, one a device, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.protocol import AnyDevice, Backend, Tensor, backend_of, nbytes
from ..checks import check_ids, check_list
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
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )
    if "int" not in B.dtype_of(y):
        raise InvalidInput(
            f"expected labels y that are whole numbers, got {B.dtype_of(y)}; convert "
            "them to int64"
        )
    if vocabulary and B.device_of(X) == "cpu":
        check_ids(B.numpy(X), vocabulary)
    return B


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
    check_batch(X, y)
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
