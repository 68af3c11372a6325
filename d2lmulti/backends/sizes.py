"""How large a tensor of any backend is, in elements and in bytes."""

from __future__ import annotations

from . import backend_of
from .protocol import Tensor


def nbytes(x: Tensor) -> int:
    """Bytes that the elements of `x` take."""
    return element_count(x) * itemsize(x)


def element_count(x: Tensor) -> int:
    """Number of elements of `x` (a scalar has one)."""
    if not hasattr(x, "shape"):
        backend_of(x)  # which says what a tensor is
    count = 1
    for extent in x.shape:
        count *= int(extent)
    return count


def itemsize(x: Tensor) -> int:
    """Bytes of one element of `x`."""
    bits = backend_of(x).dtype_of(x).lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(bits or 8) // 8  # "bool" has no digits: one byte
