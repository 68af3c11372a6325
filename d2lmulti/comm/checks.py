"""What collectives refuse before anything moves, in words that name the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
from ..backends.dtypes import DTYPES
from ..backends.overlap import find_overlap
from ..checks import check_choice, check_list
from ..errors import InvalidInput
from .agreement import check_same


def check_data(data: Sequence[Any]) -> None:
    """Refuse anything but a list of different tensors of one framework and form."""
    _check_list(data)
    first = data[0]
    if any(x.shape != first.shape or x.dtype != first.dtype for x in data):
        check_same(
            {rank: _form(x, x.shape) for rank, x in enumerate(data)},
            "the same shape and dtype on every rank",
            "every rank must pass the same parameter's gradient",
        )


def check_rows(data: Sequence[Any]) -> None:
    """Refuse tensors that are not the same but for their number of rows."""
    _check_list(data)
    for rank, x in enumerate(data):
        if not tuple(x.shape):
            raise InvalidInput(
                f"expected tensors with rows, got one number on rank {rank}; reshape "
                "it to (1,) to join numbers"
            )
    calls = {rank: "rows of " + _form(x, x.shape[1:]) for rank, x in enumerate(data)}
    check_same(
        calls,
        "the same shape (but for the first dimension) and dtype on every rank",
        "every rank must pass a part of the same tensor",
    )


def check_op(op: str, x: Any) -> None:
    """Refuse an unknown operation, a mean of integers, a maximum without order."""
    check_choice("op", op, ("sum", "mean", "max"))
    dtype = backend_of(x).dtype_of(x)
    if op == "max" and dtype.startswith("complex"):
        raise InvalidInput(
            f"expected numbers that have an order for a maximum, got {dtype}; take the "
            "maximum of their absolute values, or another op"
        )
    if op == "mean" and dtype.startswith(("int", "uint", "bool")):
        raise InvalidInput(
            f"expected floating-point tensors for a mean, got {dtype}; take the sum "
            "and divide it yourself, or convert the tensors"
        )


def _check_list(data: Sequence[Any]) -> None:
    cure = "pass [tensor of rank 0, tensor of rank 1, ...]"
    check_list("data", data, "tensors, one per device", cure=cure)
    backends = [backend_of(x) for x in data]
    if any(B is not backends[0] for B in backends):
        check_same(
            {rank: B.name for rank, B in enumerate(backends)},
            "tensors of one framework",
            "convert with B.array(other.numpy(x))",
        )
    for rank, x in enumerate(data):
        if backends[rank].dtype_of(x) not in DTYPES:
            raise InvalidInput(
                f"expected a dtype among {', '.join(DTYPES)}, got "
                f"{backends[rank].dtype_of(x)} on rank {rank}; convert the tensors"
            )
    shared = find_overlap(data) if len(data) > 1 else None
    if shared:
        raise InvalidInput(
            "expected a tensor of its own for every rank, got entries "
            f"{shared[0]} and {shared[1]}, which share memory; give each device its "
            "own copy with get_params or B.copy_to"
        )


def _form(x: Any, shape: Sequence[int]) -> str:
    return f"{tuple(shape)} {backend_of(x).dtype_of(x)}"
