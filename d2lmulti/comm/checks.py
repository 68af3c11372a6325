"""What collectives refuse before anything moves, in words that name the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
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
    """Refuse an unknown operation, and a mean where there are no fractions."""
    if op not in ("sum", "mean", "max"):
        raise InvalidInput(f"expected sum, mean or max as op, got {op!r}")
    dtype = backend_of(x).dtype_of(x)
    if op == "mean" and not dtype.startswith("float"):
        raise InvalidInput(
            f"expected floating-point tensors for a mean, got {dtype}; take the sum "
            "and divide it yourself, or convert the tensors"
        )


def _check_list(data: Sequence[Any]) -> None:
    if not isinstance(data, (list, tuple)) or not data:
        came = (
            "an empty one" if isinstance(data, (list, tuple)) else type(data).__name__
        )
        raise InvalidInput(
            f"expected a list with one tensor per device, got {came}; pass "
            "[tensor of rank 0, tensor of rank 1, ...]"
        )
    backends = [backend_of(x) for x in data]
    if any(B is not backends[0] for B in backends):
        check_same(
            {rank: B.name for rank, B in enumerate(backends)},
            "tensors of one framework",
            "convert with B.array(other.numpy(x))",
        )
    if len(data) > 1 and _share_storage(data):  # looking waits for pending work
        raise InvalidInput(
            "expected a tensor of its own for every rank, got one tensor twice; give "
            "each device its own copy with get_params or B.copy_to"
        )


def _share_storage(data: Sequence[Any]) -> bool:
    """Tell whether two entries are one tensor, or two handles on one (a gradient's)."""
    B = backend_of(data[0])
    memories = [B.memory(x) for x in data]
    where = [
        id(x) if memory is None or not memory.size
        else memory.__array_interface__["data"][0]
        for x, memory in zip(data, memories, strict=True)
    ]  # fmt: skip
    return len(set(where)) < len(where)


def _form(x: Any, shape: Sequence[int]) -> str:
    return f"{tuple(shape)} {backend_of(x).dtype_of(x)}"
