"""Convolution and pooling in NumPy, each as a value and its pullbacks, for `numpy.py`.

A convolution copies every window of an image into a column; then it is one matrix
product (im2col). Its pullback adds each column back to where it was copied from.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .tape import Pullback


def correlate(
    X: np.ndarray, W: np.ndarray, padding: int
) -> tuple[np.ndarray, Pullback, Pullback]:
    """Slide W (c_out, c_in, kh, kw) over X (batch, c_in, ...), framed with zeros.

    Returns the result (batch, c_out, h, w) and the pullbacks into X and into W.
    """
    frame = (padding, padding)
    padded = np.pad(X, ((0, 0), (0, 0), frame, frame))
    columns = unfold(padded, *W.shape[2:])  # (batch, c_in * kh * kw, h * w)
    matrix = W.reshape((len(W), -1))  # (c_out, c_in * kh * kw)
    h, w = (n - k + 1 for n, k in zip(padded.shape[2:], W.shape[2:], strict=True))
    flat = (len(X), len(W), h * w)

    def into_X(d: np.ndarray) -> np.ndarray:
        whole = fold(matrix.T @ d.reshape(flat), padded.shape, *W.shape[2:])
        return whole[:, :, padding:, padding:][:, :, : X.shape[2], : X.shape[3]]

    def into_W(d: np.ndarray) -> np.ndarray:
        each = d.reshape(flat) @ columns.swapaxes(1, 2)  # of every example
        return each.sum(axis=0).reshape(W.shape)

    return (matrix @ columns).reshape((len(X), len(W), h, w)), into_X, into_W


def unfold(X: np.ndarray, kh: int, kw: int) -> np.ndarray:
    """Copy X (batch, c, height, width) into columns (batch, c * kh * kw, h * w).

    Row (i, j) of a channel is what element (i, j) of the kernel meets as it slides.
    """
    batch, c, height, width = X.shape
    h, w = height - kh + 1, width - kw + 1
    met = sliding_window_view(X, (1, 1, h, w))  # (batch, c, kh, kw, 1, 1, h, w)
    return met.reshape((batch, c * kh * kw, h * w))


def fold(columns: np.ndarray, shape: tuple[int, ...], kh: int, kw: int) -> np.ndarray:
    """Add columns to where `unfold` copied them from: X of this shape, from zeros."""
    batch, c, height, width = shape
    h, w = height - kh + 1, width - kw + 1
    met = columns.reshape((batch, c, kh, kw, h, w))
    X = np.zeros(shape, columns.dtype)
    for i in range(kh):
        for j in range(kw):
            X[:, :, i : i + h, j : j + w] += met[:, :, i, j]
    return X


def average(X: np.ndarray, size: int) -> tuple[np.ndarray, Pullback]:
    """Average disjoint windows of X (batch, c, height, width); and the pullback."""
    windows = cut(X, size)

    def spread(d: np.ndarray) -> np.ndarray:  # every pixel of a window gets its share
        share = d[..., None] / np.asarray(size * size, d.dtype)
        return join(np.broadcast_to(share, windows.shape), X, size)

    return windows.mean(axis=-1), spread


def largest(X: np.ndarray, size: int) -> tuple[np.ndarray, Pullback]:
    """Take the maximum of disjoint windows of X; and the pullback."""
    windows = cut(X, size)
    best = windows.argmax(axis=-1)[..., None]  # on a tie, the first takes it all

    def to_best(d: np.ndarray) -> np.ndarray:
        out = np.zeros_like(windows)
        np.put_along_axis(out, best, d[..., None], axis=-1)
        return join(out, X, size)

    return np.take_along_axis(windows, best, axis=-1)[..., 0], to_best


def cut(X: np.ndarray, size: int) -> np.ndarray:
    """Cut X (batch, c, height, width) into (batch, c, h, w, size * size)."""
    batch, c, height, width = X.shape
    h, w = height // size, width // size
    whole = X[:, :, : h * size, : w * size]  # drop what fills no window
    whole = whole.reshape((batch, c, h, size, w, size)).swapaxes(3, 4)
    return whole.reshape((batch, c, h, w, size * size))


def join(windows: np.ndarray, X: np.ndarray, size: int) -> np.ndarray:
    """Put windows back to where they were cut from X; zeros where nothing was cut."""
    batch, c, h, w, _ = windows.shape
    whole = windows.reshape((batch, c, h, w, size, size)).swapaxes(3, 4)
    out = np.zeros(X.shape, X.dtype)
    out[:, :, : h * size, : w * size] = whole.reshape((batch, c, h * size, w * size))
    return out
