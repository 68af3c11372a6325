"""Cutting a batch into shards, one a device, as evenly as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
from ..backends.lists import one_backend
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..backends.sizes import nbytes
from ..checks import check_list
from ..cluster.ledger import open_ledgers
from ..errors import InvalidInput, several
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
    _check_examples(X, y)
    if len(X) < group.size:
        raise InvalidInput(
            f"cannot split {several(len(X), 'example')} over "
            f"{several(group.size, 'device')}; use at least "
            f"{several(group.size, 'example')} or fewer devices"
        )
    bounds = [even_bounds(len(X), group.size)[rank] for rank in group.local_ranks]
    return _scatter(X, bounds, devices), _scatter(y, bounds, devices)


def check_batch(X: Tensor, y: Tensor) -> Backend:
    """Refuse all but examples and as many labels, whole numbers; return their backend.

    That the labels are below the number of classes is seen beside the logits.
    """
    B = _check_examples(X, y)
    if "int" not in B.dtype_of(y):
        raise InvalidInput(
            f"expected labels y that are whole numbers, got {B.dtype_of(y)}; convert "
            "them to int64"
        )
    return B


def _check_examples(X: Tensor, y: Tensor) -> Backend:
    B = one_backend("X and y", (X, y))
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )
    return B


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
