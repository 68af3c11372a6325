"""What every backend refuses in the same words, before its framework sees it.

Left alone, the frameworks raise different errors, spread one value over a whole part,
do nothing and say nothing, or (Paddle, given a wrong dtype or length) read memory that
is not theirs. A check costs a microsecond; with MXNet, four.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from ..checks import check_list
from ..errors import DeviceUnavailable, InvalidInput
from . import tracking
from .dtypes import NUMPY_DTYPES, dtype_name
from .protocol import Backend, Tensor, backend_of

_DEVICE = re.compile(r"(?:cpu(?::0)?|(gpu|cuda|sim):([0-9]+))")


def parse_device(device: object) -> tuple[str, int]:
    """Split a device (anything whose `str` is a device name) into kind and index.

    `cuda:1` is read as `gpu:1`. Raises `InvalidInput` for anything else.
    """
    kind, index = getattr(device, "kind", None), getattr(device, "index", None)
    if kind in ("gpu", "sim") and type(index) is int and index >= 0:
        return kind, index  # one of ours, which need not be read as text
    match = _DEVICE.fullmatch(str(device))
    if match is None or isinstance(device, (int, float)):
        raise InvalidInput(
            f"expected a device such as 'cpu', 'gpu:0' or 'sim:1', got {device!r}; "
            "list this machine's devices with `python -m d2lmulti doctor`"
        )
    kind, index = match.groups()
    if kind is None:
        return "cpu", 0
    return ("sim" if kind == "sim" else "gpu"), int(index)


def resolve_device(device: object, gpu_count: int, framework: str) -> tuple[str, int]:
    """Decide the physical place of a device: ("cpu", 0), ("gpu", i) or ("sim", i).

    Simulated devices are dealt out over the GPUs in turn, or all lie on the CPU. They
    keep their number where tensors know it (see `tracking.py`) and no two GPUs are.
    Raises `DeviceUnavailable` for a GPU that the framework does not see.
    """
    kind, index = parse_device(device)
    if kind == "sim" and framework in tracking.frameworks and gpu_count < 2:
        return kind, index
    if kind == "sim":
        return ("gpu", index % gpu_count) if gpu_count else ("cpu", 0)
    if kind == "gpu" and index >= gpu_count:
        raise DeviceUnavailable(
            f"expected a GPU that {framework} can use, got gpu:{index} where it sees "
            f"{gpu_count}; use devices(n), which simulates the missing ones, or 'cpu'"
        )
    return kind, index


def numeric(value: np.ndarray | Sequence[Any], held: Collection[str]) -> np.ndarray:
    """View values as plain NumPy: row-major, native bytes, a dtype the backend holds.

    PyTorch takes no negative strides and no foreign byte order. Raises `InvalidInput`
    for ragged lists, strings and objects.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy 1.23 only warns of a ragged list
            found = np.asarray(value, order="C")
    except (ValueError, Warning) as error:
        raise InvalidInput(
            f"expected rows of equal length, got a {type(value).__name__} of which "
            f"NumPy says: {error}; pad the rows or make one tensor of each"
        ) from error
    name = dtype_name(found.dtype, [name for name in held if name in NUMPY_DTYPES])
    return found.astype(name, copy=False)


def _plain(dtype: Any) -> str:
    return str(dtype).split(".")[-1].rstrip("'>")  # paddle.float32 is float32


def part(x: Tensor, first: int, last: int) -> None:
    """Refuse a part that does not lie in the flattened `x`."""
    size = math.prod(x.shape)
    if not 0 <= first <= last <= size:
        raise InvalidInput(
            f"expected 0 <= first <= last <= {size}, the number of elements, got first "
            f"{first} and last {last}; count elements of the flattened tensor"
        )


def write(x: Tensor, first: int, last: int, y: Tensor) -> None:
    """Refuse values that are not exactly those of the part, or of another dtype."""
    part(x, first, last)
    count = math.prod(y.shape)
    if count != last - first:
        raise InvalidInput(
            f"expected {last - first} values for elements {first} to {last}, got "
            f"{count}; a write takes one value for each element"
        )
    if x.dtype != y.dtype:
        raise InvalidInput(
            f"expected values of dtype {_plain(x.dtype)}, as the tensor has, got "
            f"{_plain(y.dtype)}; make both tensors of one dtype"
        )


def contiguous(is_contiguous: bool) -> None:
    """Refuse to write to a strided view: its flattened form would be a copy."""
    if not is_contiguous:
        raise InvalidInput(
            "expected a tensor that lies row by row in memory, got a strided view (of "
            "a transpose, say); write to copy_to(x, device) instead"
        )


def ids(values: np.ndarray, count: int) -> None:
    """Refuse ids that are not in 0..count-1: NumPy would take -1 for the last."""
    lowest, highest = values.min(initial=0), values.max(initial=0)
    if lowest < 0 or highest >= count:
        raise InvalidInput(
            f"expected ids from 0 to {count - 1}, got {lowest} to {highest}; use a "
            "table with more rows, or logits of more classes"
        )


def leaf(is_leaf: bool) -> None:
    """Refuse to attach a gradient to the result of a recorded operation."""
    if not is_leaf:
        raise InvalidInput(
            "expected a tensor that no recorded operation made, got a result inside a "
            "graph; call attach_grad before the operations or on detach(x)"
        )


def grads(ys: Sequence[Tensor], dys: Sequence[Tensor] | None) -> None:
    """Refuse to go backward from nothing, or with gradients of another form."""
    check_list("ys", ys, "tensors to go backward from", cure="pass [loss]")
    if dys is None:
        return
    if len(dys) != len(ys):
        raise InvalidInput(
            f"expected one gradient for each of {len(ys)} tensors, got {len(dys)}; "
            "pass dys in the order of ys"
        )
    for i, (y, dy) in enumerate(zip(ys, dys, strict=True)):
        if tuple(y.shape) != tuple(dy.shape) or y.dtype != dy.dtype:
            raise InvalidInput(
                f"expected dys[{i}] with shape {tuple(y.shape)} and dtype "
                f"{_plain(y.dtype)}, as ys[{i}] has, got {tuple(dy.shape)} and "
                f"{_plain(dy.dtype)}; a gradient has the form of its tensor"
            )


def recorded(each: Sequence[bool]) -> None:
    """Refuse to go backward from a tensor that does not come from a recorded graph."""
    if not all(each):
        raise not_recorded()


def wanted(xs: Sequence[Tensor], attached: Sequence[bool]) -> None:
    """Refuse to look for the gradients of nothing, or of what collects none."""
    check_list("xs", xs, "tensors to differentiate by", cure="pass [x]")
    if not all(attached):
        raise not_attached()


def reached(each: Sequence[bool]) -> None:
    """Refuse an x that no y depends on: zero is most often not what was meant."""
    if not all(each):
        raise InvalidInput(
            f"expected tensors that ys depend on, got xs[{list(each).index(False)}] "
            "which they do not; leave it out"
        )


def not_recorded() -> InvalidInput:
    """Make the error for a backward pass that has no graph to go through."""
    return InvalidInput(
        "expected every tensor in ys to depend, by operations inside record(), on a "
        "tensor with attach_grad, got one that does not; compute it in `with "
        "B.record():`, and go backward through a graph once only"
    )


def not_attached() -> InvalidInput:
    """Make the error for a gradient that was never asked for."""
    return InvalidInput(
        "expected a tensor that collects a gradient, got one that does not; call "
        "attach_grad(x) before the forward pass"
    )


def window(X: Tensor, size: int) -> None:
    """Refuse a pooling window that fits nowhere (Paddle would pad the image)."""
    height, width = X.shape[2:]
    if not 1 <= size <= min(height, width):
        raise InvalidInput(
            f"expected a window of 1 to {min(height, width)} on images of {height} x "
            f"{width}, got {size}; pool less or use larger images"
        )


# -- lists of tensors, one for each device: parameters, states, gradients --------------


def check_tensors(name: str, tensors: Any, cure: str = "") -> Backend:
    """Refuse all but a list of at least one tensor; return their backend."""
    check_list(name, tensors, "tensors", cure=cure)
    return one_backend(name, tensors)


def check_floating(name: str, x: Tensor) -> None:
    """Refuse a tensor that cannot have a gradient, because its values are no floats."""
    dtype = backend_of(x).dtype_of(x)
    if "float" not in dtype:
        raise InvalidInput(
            f"expected tensors of a floating-point dtype as {name}, got {dtype}; "
            "convert with x.astype('float32') before B.array(x)"
        )


def check_lists(
    name: str, lists: Any, owners: int, per: str = "device", least: int = 1,
    cure: str = "",
) -> Sequence[Sequence[Tensor]]:  # fmt: skip
    """Refuse all but one list of tensors for each owner, each tensor in one place.

    A list given to two replicas would be updated twice; on PyTorch, without a word.
    """
    then = f"; {cure}" if cure else ""
    check_list(name, lists, f"lists of tensors, one a {per}", cure=cure)
    if len(lists) != owners:
        raise InvalidInput(
            f"expected one list of tensors per {per} as {name}, got {len(lists)} for "
            f"{owners} {per}s{then}"
        )
    for i, mine in enumerate(lists):
        check_list(f"{name}[{i}]", mine, "tensors", least, cure)
    every = [x for mine in lists for x in mine]
    if every:
        one_backend(name, every)
    if len({id(x) for x in every}) < len(every):
        raise InvalidInput(
            f"expected tensors of its own for every {per} as {name}, got one tensor "
            f"twice{then}"
        )
    return lists


def one_backend(name: str, tensors: Iterable[Any]) -> Backend:
    """Return the backend of all these tensors; refuse tensors of several."""
    found = [backend_of(x) for x in {type(x): x for x in tensors}.values()]
    if any(B is not found[0] for B in found):
        raise InvalidInput(
            f"expected tensors of one framework as {name}, got some of "
            f"{' and '.join(sorted(B.name for B in found))}; convert with "
            "B.array(other.numpy(x))"
        )
    return found[0]
