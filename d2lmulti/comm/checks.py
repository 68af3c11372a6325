"""What collectives refuse before anything moves, in words that name the ranks.

Asked once, where a caller from outside comes in: a training step does not ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.checks import ids as check_ids
from ..backends.checks import one_backend
from ..backends.dtypes import DTYPES
from ..backends.protocol import Backend, Tensor, backend_of
from ..checks import check_choice, check_list
from ..errors import InvalidInput, several
from ..plans.allreduce import ALLREDUCE
from ..plans.rounds import Plan
from .agreement import check_same

_OTHERS = ("auto", "native")


def check_data(data: Sequence[Any], op: str = "sum") -> None:
    """Refuse anything but a list of different tensors of one framework and form.

    And an unknown operation, a mean of integers, a maximum of what has no order.
    """
    B = _check_list(data)
    shape, dtype = data[0].shape, data[0].dtype
    for x in data:
        if x.shape != shape or x.dtype != dtype:
            check_same(
                {rank: _form(x, x.shape) for rank, x in enumerate(data)},
                "the same shape and dtype on every rank",
                "every rank must pass the same parameter's gradient",
            )
    if op != "sum":
        _check_op(op, B.dtype_of(data[0]))


def check_algorithm(algorithm: str | Plan) -> None:
    """Refuse what is neither the name of an all-reduce nor a plan."""
    if callable(algorithm):
        return
    if not isinstance(algorithm, str) or algorithm not in (*ALLREDUCE, *_OTHERS):
        check_choice("algorithm", algorithm, (*ALLREDUCE, *_OTHERS))


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


def check_batch(X: Tensor, y: Tensor, vocabulary: int = 0) -> Backend:
    """Refuse all but examples and as many labels, whole numbers; return their backend.

    With a vocabulary, X holds ids below it, which are checked if X lies on the CPU.
    That the labels are below the number of classes is seen beside the logits.
    """
    B = check_examples(X, y)
    if "int" not in B.dtype_of(y):
        raise InvalidInput(
            f"expected labels y that are whole numbers, got {B.dtype_of(y)}; convert "
            "them to int64"
        )
    if vocabulary and B.device_of(X) == "cpu":
        check_ids(B.numpy(X), vocabulary)
    return B


def check_examples(X: Tensor, y: Tensor) -> Backend:
    """Refuse all but two tensors with as many rows; return their backend."""
    B = one_backend("X and y", (X, y))
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )
    return B


def check_split(X: Tensor, y: Tensor, ranks: int) -> None:
    """Refuse a batch with fewer examples than ranks."""
    check_examples(X, y)
    if len(X) < ranks:
        raise InvalidInput(
            f"cannot split {several(len(X), 'example')} over "
            f"{several(ranks, 'device')}; use at least "
            f"{several(ranks, 'example')} or fewer devices"
        )


def check_native(engine: Any, what: str, dtype: str = "") -> None:
    """Refuse a collective that is none of the engine's own, or not for the dtype."""
    if what not in engine.native:
        raise InvalidInput(
            f"expected one of {', '.join(sorted(engine.native))} as native collective "
            f"of {engine.name}, got {what!r}; use one of these, or a plan where an "
            "engine has messages"
        )
    adds = what in ("allreduce", "reduce_scatter")
    if dtype and adds and engine.reducible and dtype not in engine.reducible:
        raise InvalidInput(
            f"expected one of {', '.join(engine.reducible)} for the native all-reduce "
            f"of {engine.name}, got {dtype}; use another algorithm, such as ring, "
            "where the engine has messages, or convert the tensors"
        )


def _check_op(op: str, dtype: str) -> None:
    check_choice("op", op, ("sum", "mean", "max"))
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


def _check_list(data: Sequence[Any]) -> Backend:
    if not isinstance(data, (list, tuple)) or not data:
        cure = "pass [tensor of rank 0, tensor of rank 1, ...]"
        check_list("data", data, "tensors, one per device", cure=cure)
    B, kind = backend_of(data[0]), type(data[0])
    for x in data:
        if type(x) is not kind and backend_of(x) is not B:
            check_same(
                {rank: backend_of(x).name for rank, x in enumerate(data)},
                "tensors of one framework",
                "convert with B.array(other.numpy(x))",
            )
    if B.dtype_of(data[0]) not in DTYPES:  # the others must have the same
        raise InvalidInput(
            f"expected a dtype among {', '.join(DTYPES)}, got {B.dtype_of(data[0])} on "
            "rank 0; convert the tensors"
        )
    shared = find_overlap(data) if len(data) > 1 else None
    if shared:
        raise InvalidInput(
            "expected a tensor of its own for every rank, got entries "
            f"{shared[0]} and {shared[1]}, which share memory; give each device its "
            "own copy with get_params or B.copy_to"
        )
    return B


def find_overlap(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Name two tensors of which one begins before the other ends, or none.

    Compared are the addresses from the first to the last element, so views that
    interleave, such as columns of one matrix, count too.
    """
    extents = []
    for i, x in enumerate(tensors):
        first, last = _extent(x)
        if first < last:
            extents.append((first, last, i))
    extents.sort()
    reached, owner = 0, 0
    for first, last, i in extents:
        if first < reached:
            return min(i, owner), max(i, owner)
        reached, owner = last, i
    return None


def _extent(x: Any) -> tuple[int, int]:
    """Give the address of the first byte and that past the last one."""
    if hasattr(x, "data_ptr"):  # PyTorch and Paddle say it, also of a GPU's memory
        first, reach = x.data_ptr(), 0
        if (size := getattr(x, "nbytes", None)) is not None and x.is_contiguous():
            return first, first + size  # PyTorch's short way
        strides = x.stride() if hasattr(x, "stride") else x.strides
        for extent, step in zip(x.shape, strides, strict=True):
            if not extent:
                return first, first
            reach += (extent - 1) * step
        return first, first + (reach + 1) * x.element_size()
    memory = backend_of(x).memory(x)
    if memory is None:  # nobody tells: then it can only be compared with itself
        return id(x), id(x) + 1
    first = memory.ctypes.data
    return first, first + memory.nbytes


def _form(x: Any, shape: Sequence[int]) -> str:
    return f"{tuple(shape)} {backend_of(x).dtype_of(x)}"
