"""Sliding over images and cutting them into windows, in NumPy, for `numpy.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def correlate(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Slide W (c_out, c_in, kh, kw) over X (batch, c_in, ...): (batch, c_out, h, w)."""
    # Windows (batch, c_in, h, w, kh, kw) meet W in c_in, kh, kw.
    windows = sliding_window_view(X, (1, 1, *W.shape[2:]))[..., 0, 0, :, :]
    out = np.tensordot(windows, W, axes=((1, 4, 5), (1, 2, 3)))
    return np.ascontiguousarray(np.moveaxis(out, -1, 1))


def correlate_back(
    padded: np.ndarray, W: np.ndarray, padding: int
) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """Make the two pullbacks of a correlation, which are correlations themselves.

    They turn the gradient d (batch, c_out, h, w) of `correlate(padded, W)` into that of
    the image inside its frame, and into that of W.
    """
    height, width = padded.shape[2] - 2 * padding, padded.shape[3] - 2 * padding
    kh, kw = W.shape[2:]

    def into_X(d: np.ndarray) -> np.ndarray:  # an input meets the flipped kernel
        flipped = W[:, :, ::-1, ::-1].swapaxes(0, 1)  # (c_in, c_out, kh, kw)
        whole = correlate(pad(d, kh - 1, kw - 1), flipped)
        return whole[:, :, padding : padding + height, padding : padding + width]

    def into_W(d: np.ndarray) -> np.ndarray:  # the batch takes the channels' place
        return correlate(padded.swapaxes(0, 1), d.swapaxes(0, 1)).swapaxes(0, 1)

    return into_X, into_W


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
