"""All argument checks: for values that would train wrongly without an error, hang, or
lose data. For others the framework's own error is enough.

A check returns the value, or raises `InvalidInput`: what was expected, what was found,
and a hint. NumPy scalars are numbers, too; True is not a count, and nan and inf are not
numbers. Checks of tensors use shape, dtype, and identity, for every framework.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from .errors import InvalidInput, by_call

T = TypeVar("T")
Tensor = Any

MAX_INDEX = 2**63 - 1  # the largest index of every framework
MAX_RANKS = 2**16  # a larger number is a typing error


def invalid(expected: str, value: Any, hint: str = "") -> InvalidInput:
    """Return the error: what was expected, what was found, what to do."""
    return InvalidInput(f"expected {expected}, got {shown(value)}{_then(hint)}")


def shown(value: Any) -> str:
    """Return any value as one short line."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # of the object's repr, or an integer that is too long
        words = f"a {type(value).__name__} that cannot be printed"
    return words if len(words) <= 60 else words[:57] + "..."


def _then(hint: str) -> str:
    return f"; {hint}" if hint else ""


# -- plain values -----------------------------------------------------------------


def check_count(
    name: str, value: Any, min: int = 1, max: int | None = MAX_INDEX, hint: str = ""
) -> int:
    """Return a whole number within the bounds, as a Python integer.

    >>> check_count("epochs", 1.5)
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected a whole number ... as epochs, got 1.5
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if whole and value >= min and (max is None or value <= max):
        return int(value)
    bounds = f"of at least {min}"
    if max not in (None, MAX_INDEX):
        bounds = f"from {min} to {max}"
    raise invalid(f"a whole number {bounds} as {name}", value, hint)


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    min: float = -math.inf,
    below: float = math.inf,
    max: float = math.inf,
    hint: str = "",
) -> float:
    """Return a finite number within the bounds.

    >>> check_number("momentum", "0.9", min=0, below=1)
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected a finite number ... as momentum, got '0.9'
    """
    number = isinstance(value, (int, float, np.integer, np.floating))
    if number and not isinstance(value, bool) and -math.inf < value < math.inf:
        if above < value < below and min <= value <= max:
            return value.item() if isinstance(value, np.generic) else value
    bounds = {"above": above, "of at least": min, "below": below, "up to": max}
    words = [f" {word} {b:g}" for word, b in bounds.items() if math.isfinite(b)]
    raise invalid(f"a finite number{' and'.join(words)} as {name}", value, hint)


def check_positive(name: str, value: Any, hint: str = "") -> float:
    """Return a finite number above 0."""
    return check_number(name, value, above=0, hint=hint)


def check_choice(name: str, value: Any, choices: Iterable[str], hint: str = "") -> str:
    """Return one of the choices."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    raise invalid(f"one of {', '.join(known)} as {name}", value, hint)


def check_list(
    name: str, value: Any, of: str, min_length: int = 1, hint: str = ""
) -> Sequence[Any]:
    """Return a list or tuple of at least `min_length` entries; no generator."""
    if isinstance(value, (list, tuple)) and len(value) >= min_length:
        return value
    kind = f"at least {min_length} {of}" if min_length > 1 else of
    raise invalid(f"a list of {kind} as {name}", value, hint)


# -- NumPy arrays -----------------------------------------------------------------


def check_ids(ids: np.ndarray, count: int, name: str = "ids") -> None:
    """Raise unless ids are from 0 to `count` - 1: to NumPy, -1 is the last."""
    lowest, highest = ids.min(initial=0), ids.max(initial=0)
    if lowest < 0 or highest >= count:
        raise InvalidInput(
            f"expected {name} from 0 to {count - 1}, got {lowest} to {highest}; use a "
            "table with more rows, or logits of more classes"
        )


def check_finite(name: str, values: np.ndarray) -> np.ndarray:
    """Return an array without nan and inf."""
    # A sum needs one pass and no second array; if it overflows, check every value.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values, dtype=np.float64)
    if np.isfinite(total) or np.isfinite(values).all():
        return values
    place = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
    raise InvalidInput(
        f"expected finite numbers as {name}, got {values[tuple(place)]} at {place}"
    )


# -- tensors ----------------------------------------------------------------------


def spec_of(x: Tensor, first: int = 0) -> str:
    """Return the shape, from dimension `first` on, and the dtype: `(2, 3) float32`."""
    dtype = str(x.dtype).split(".")[-1].rstrip("'>")  # paddle.float32 is float32
    return f"{tuple(x.shape[first:])} {dtype}"


def check_part(x: Tensor, first: int, last: int) -> None:
    """Raise unless a part is within the flattened `x`: a slice would be shorter."""
    size = math.prod(x.shape)
    if not 0 <= first <= last <= size:
        raise invalid(f"0 <= first <= last <= {size} elements", (first, last))


def check_write(x: Tensor, first: int, last: int, y: Tensor) -> None:
    """Raise unless `y` has one value of the same dtype for each element of the part."""
    check_part(x, first, last)
    if math.prod(y.shape) != last - first or x.dtype != y.dtype:
        raise InvalidInput(
            f"expected {last - first} values for elements {first} to {last} of "
            f"{spec_of(x)}, got {spec_of(y)}"
        )


def check_contiguous(contiguous: bool) -> None:
    """Raise before a write to a strided view, which would change a flattened copy."""
    if not contiguous:
        raise InvalidInput(
            "expected a tensor that lies row by row in memory, got a strided view (of "
            "a transpose, say); write to copy_to(x, device) instead"
        )


def check_window(X: Tensor, size: int) -> None:
    """Raise for a pooling window larger than the image: Paddle would pad it."""
    if not 1 <= size <= min(X.shape[2:]):
        raise invalid(f"a window that fits on images {spec_of(X)}", size)


def check_leaf(is_leaf: bool) -> None:
    """Raise before a gradient is attached to the result of a recorded operation."""
    if not is_leaf:
        raise InvalidInput(
            "expected a tensor that no recorded operation made, got a result inside a "
            "graph; call attach_grad before the operations or on detach(x)"
        )


def check_grads(ys: Sequence[Tensor], dys: Sequence[Tensor] | None) -> None:
    """Raise unless each y has a gradient of its shape: Paddle would read beyond it."""
    if dys is None:
        return
    expected, given = [*map(spec_of, ys)], [*map(spec_of, dys)]
    if given != expected:
        raise InvalidInput(
            f"expected dys with the shapes and dtypes of ys, {expected}, got {given}"
        )


def check_recorded(recorded: Iterable[bool]) -> None:
    """Raise unless every y was recorded: Paddle would silently do nothing."""
    if not all(recorded):
        raise InvalidInput(
            "expected every tensor in ys to depend, by operations inside record(), on "
            "a tensor with attach_grad, got one that does not; compute it in `with "
            "B.record():`, and run backward through a graph only once"
        )


def not_attached() -> InvalidInput:
    """Return the error for a tensor without an attached gradient."""
    return InvalidInput(
        "expected a tensor that collects a gradient, got one that does not; call "
        "attach_grad(x) before the forward pass"
    )


# -- lists of tensors, one for each rank ------------------------------------------


def check_floating(name: str, x: Tensor) -> None:
    """Raise for a tensor without floats, which cannot have a gradient."""
    if "float" not in (spec := spec_of(x)):
        raise InvalidInput(f"expected floating-point tensors as {name}, got {spec}")


def check_params(params: Any, count: int, what: str = "parameters") -> None:
    """Raise unless there are as many parameters, or shards, as the model has."""
    hint = "take them from model.initial(rng) of the same model"
    check_list("params", params, "tensors", hint=hint)
    if len(params) != count:
        raise InvalidInput(
            f"expected {count} {what}, as the model has, got {len(params)}; {hint}"
        )


def check_lists(
    name: str,
    lists: Any,
    owners: int,
    per: str = "device",
    min_length: int = 1,
    hint: str = "",
) -> Sequence[Sequence[Tensor]]:
    """Return one list of tensors per owner; raise if two contain the same tensor.

    A list passed for two replicas would be updated twice, on PyTorch without an error.
    """
    check_list(name, lists, f"lists of tensors, one per {per}", hint=hint)
    if len(lists) != owners:
        raise InvalidInput(
            f"expected one list of tensors per {per} as {name}, got {len(lists)} for "
            f"{owners} {per}s{_then(hint)}"
        )
    for i, tensors in enumerate(lists):
        check_list(f"{name}[{i}]", tensors, "tensors", min_length, hint)
    check_distinct(name, [x for tensors in lists for x in tensors])
    return lists


def check_distinct(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise for one tensor in two places: ranks would change each other's values."""
    if len({id(x) for x in tensors}) < len(tensors):
        raise InvalidInput(
            f"expected a tensor of its own in every place of {name}, got one twice; "
            "copy it with get_params or B.copy_to"
        )


def check_data(data: Sequence[Tensor], op: str = "sum") -> None:
    """Raise unless all ranks have distinct tensors of one shape and dtype."""
    check_list("data", data, "tensors, one per rank")
    if op != "sum":
        check_choice("op", op, ("sum", "mean", "max"))
    shape, dtype = data[0].shape, data[0].dtype
    for x in data:
        if x.shape != shape or x.dtype != dtype:
            expected = "the same shape and dtype on every rank"
            check_same({rank: spec_of(x) for rank, x in enumerate(data)}, expected)
    check_distinct("data", data)


def check_rows(data: Sequence[Tensor]) -> None:
    """Raise unless the tensors of all ranks differ in their number of rows only."""
    check_list("data", data, "tensors, one per rank")
    calls = {rank: f"rows of {spec_of(x, 1)}" for rank, x in enumerate(data)}
    expected = "the same shape (but for the first dimension) and dtype on every rank"
    check_same(calls, expected)


def check_same(calls: Mapping[int, str], expected: str, hint: str = "") -> None:
    """Raise unless all ranks (rank -> call, in words) make the same call.

    Otherwise, a real engine would wait forever.

    >>> check_same({0: "a sum", 1: "a copy", 2: "a sum"}, "one call", "compare them")
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected one call, got a sum on ranks 0, 2 and a ...
    """
    if len(set(calls.values())) > 1:
        raise InvalidInput(f"expected {expected}, got {by_call(calls)}{_then(hint)}")


def check_native(engine: Any, what: str, dtype: str = "") -> None:
    """Raise for a collective that the engine lacks, or computes wrongly in a dtype."""
    hint = "use another algorithm, such as ring"
    if what not in engine.native:
        known = ", ".join(sorted(engine.native))
        raise invalid(f"one of {known}, the collectives of {engine.name}", what, hint)
    adds = what in ("allreduce", "reduce_scatter")
    if dtype and adds and engine.reducible and dtype not in engine.reducible:
        known = ", ".join(engine.reducible)
        raise invalid(
            f"one of {known}, the dtypes that {engine.name} sums", dtype, hint
        )
