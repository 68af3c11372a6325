"""Do two tensors share memory? What is written to one would then change the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import backend_of
from .protocol import Tensor
from .sizes import element_count


def find_overlap(tensors: Sequence[Tensor]) -> tuple[int, int] | None:
    """Name two tensors of which one begins before the other ends, or none.

    Compared are the addresses from the first to the last element, so views that
    interleave, such as columns of one matrix, count too.
    """
    extents = []
    for i, x in enumerate(tensors):
        extent = _extent(x)
        if extent is not None:
            extents.append((*extent, i))
    extents.sort()
    for (_, last, i), (first, _, j) in zip(extents[:-1], extents[1:], strict=True):
        if first < last:
            return min(i, j), max(i, j)
    return None


def _extent(x: Any) -> tuple[int, int] | None:
    """Give the address of the first byte and that past the last one, if any."""
    if not element_count(x):
        return None
    if hasattr(x, "data_ptr"):  # PyTorch and Paddle say it, also of a GPU's memory
        strides = x.stride() if hasattr(x, "stride") else x.strides
        reach = sum((n - 1) * step for n, step in zip(x.shape, strides, strict=True))
        return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()
    memory: np.ndarray | None = backend_of(x).memory(x)
    if memory is None:  # nobody tells: then it can only be compared with itself
        return id(x), id(x) + 1
    first = memory.__array_interface__["data"][0]
    return first, first + memory.nbytes
