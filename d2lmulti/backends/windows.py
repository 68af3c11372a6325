"""Sliding over images and cutting them into windows, in NumPy, for `reference.py`."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def correlate(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Slide W (c_out, c_in, kh, kw) over X (batch, c_in, ...): (batch, c_out, h, w)."""
    # Windows (batch, c_in, h, w, kh, kw) meet W in c_in, kh, kw.
    windows = sliding_window_view(X, (1, 1, *W.shape[2:]))[..., 0, 0, :, :]
    out = np.tensordot(windows, W, axes=((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(np.moveaxis(out, -1, 1))


def pad(X: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Frame images (batch, c, h, w) with zeros."""
    return np.pad(X, ((0, 0), (0, 0), (rows, rows), (columns, columns)))


def cut_windows(X: np.ndarray, size: int) -> np.ndarray:
    """Cut X (batch, c, height, width) into (batch, c, h, w, size * size)."""
    batch, c, height, width = X.shape
    h, w = height // size, width // size
    whole = X[:, :, : h * size, : w * size]  # drop what fills no window
    whole = whole.reshape((batch, c, h, size, w, size)).swapaxes(3, 4)
    return whole.reshape((batch, c, h, w, size * size))


def join_windows(windows: np.ndarray, X: np.ndarray, size: int) -> np.ndarray:
    """Put windows back to where they were cut from X; zeros where nothing was cut."""
    batch, c, h, w, _ = windows.shape
    whole = windows.reshape((batch, c, h, w, size, size)).swapaxes(3, 4)
    out = np.zeros(X.shape, X.dtype)
    out[:, :, : h * size, : w * size] = whole.reshape((batch, c, h * size, w * size))
    return out
