"""Shared by backends: NumPy on the memory of tensors, and hooks of gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from . import BFLOAT16, numpy_dtype

# -- NumPy on the memory of tensors -----------------------------------------------

_PIECE = 1 << 14  # elements of bfloat16 that are widened at a time, in the cache


def view_at(address: int | None, count: int, dtype: str) -> np.ndarray:
    """Return a flat view of `count` elements at an address, without ownership."""
    kind = numpy_dtype(dtype)
    if not count:  # there may be no address
        return np.zeros(0, kind)
    raw: Any = (ctypes.c_char * (count * kind.itemsize)).from_address(address or 0)
    return np.frombuffer(raw, kind)


def _combine(function: np.ufunc, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    if out.dtype != BFLOAT16:
        function(x, y, out=out)
        return
    # A bfloat16 is the upper half of a float32: widen, compute, and round to nearest.
    x, y, out = (bits.view(np.uint16) for bits in (x, y, out))
    for first in range(0, out.size, _PIECE):
        piece = slice(first, first + _PIECE)
        wide = _widen(x[piece])
        function(wide, _widen(y[piece]), out=wide)
        bits = wide.view(np.uint32)
        # Add half of the last kept place; a tie rounds up where that place is odd.
        bits += (bits >> np.uint32(16)) % np.uint32(2) + np.uint32(0x7FFF)
        out[piece] = bits >> 16


def _widen(bits: np.ndarray) -> np.ndarray:
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


# For flat arrays of one dtype: `COMBINE["sum"](x, y, out=z)`.
COMBINE: dict[str, Callable[..., None]] = {
    "sum": partial(_combine, np.add),
    "max": partial(_combine, np.maximum),
}


# -- gradients that are ready -----------------------------------------------------


class Reporter:
    """Reports which gradients are ready, and at the end those without a gradient."""

    def __init__(self, count: int, ready: Callable[[int], None]) -> None:
        self._ready = ready
        self._unreported = set(range(count))

    def report(self, i: int, *_: object) -> None:
        """Report parameter i (hooks pass more arguments, which are ignored)."""
        self._unreported.discard(i)
        self._ready(i)

    def report_rest(self) -> None:
        """Report the parameters that were never reported, the last one first."""
        for i in sorted(self._unreported, reverse=True):
            self.report(i)
