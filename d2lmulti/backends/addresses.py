"""NumPy on memory of which a framework tells no more than the address."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np


def view_at(address: int | None, count: int, dtype: Any) -> np.ndarray:
    """View `count` elements at an address as a flat array, which does not own them."""
    dtype = np.dtype(dtype)
    if not count:  # then there may be no address either
        return np.zeros(0, dtype)
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(address or 0)
    return np.frombuffer(raw, dtype)
