"""Reverse-mode differentiation for NumPy: a tensor that records its computation.

While recording, every operation stores for each of its inputs the *pullback*: the
function from the gradient of the result to the gradient of that input. The backward
pass calls them from the last result to the first. Convolution and pooling are at the
end. Used by `numpy.py`, the reference that the frameworks are tested against.
"""

from __future__ import annotations

import heapq
import itertools
import numbers
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .. import checks
from ..errors import InvalidInput
from .tracking import one_device

Pullback = Callable[[np.ndarray], np.ndarray]


class _Recorder(threading.local):  # every thread has its own
    on = False


_recorder = _Recorder()


@contextmanager
def recording(on: bool) -> Iterator[None]:
    """Switch recording on or off inside the block, and back at its end."""
    before, _recorder.on = _recorder.on, on
    try:
        yield
    finally:
        _recorder.on = before


class Tensor:
    """A NumPy array on a tape: `value`, `device`, `gradient` if attached, and `notes`.

    `notes` are pairs (input, pullback): empty for a leaf, None once they are used.
    `depth` is one more than that of the deepest input, so inputs come before results.
    `on_gradient`, if set, is called whenever a backward pass has added its gradient.
    """

    __slots__ = ("value", "device", "gradient", "notes", "depth", "on_gradient")
    __array_ufunc__ = None  # so that `numpy_scalar * tensor` calls __rmul__

    def __init__(self, value: Any, device: str = "cpu") -> None:
        self.value = np.asarray(value)
        self.device = device  # cpu, or a tracked simulated device
        self.gradient: Tensor | None = None
        self.notes: tuple[tuple[Tensor, Pullback], ...] | None = ()
        self.depth = 0
        self.on_gradient: Callable[[], None] | None = None  # for on_grad_ready

    @property
    def in_graph(self) -> bool:
        """Return whether a gradient can reach this tensor or pass through it."""
        return self.gradient is not None or self.notes != ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the length of every dimension."""
        return self.value.shape

    @property
    def dtype(self) -> np.dtype:
        """Return NumPy's dtype of the elements."""
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)

    def __float__(self) -> float:
        return float(self.value.item())  # of any shape with one element

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype=dtype)

    def __repr__(self) -> str:
        return f"Tensor({np.array2string(self.value, separator=', ')}, {self.dtype})"

    # -- arithmetic: z is the result, d its gradient --------------------------------

    def __add__(self, other: Any) -> Tensor:
        x, y = self, _lift(other, self)
        return result(x.value + y.value, (x, lambda d: d), (y, lambda d: d))

    def __mul__(self, other: Any) -> Tensor:
        x, y = self, _lift(other, self)
        z = x.value * y.value
        return result(z, (x, lambda d: d * y.value), (y, lambda d: d * x.value))

    def __truediv__(self, other: Any) -> Tensor:
        x, y = self, _lift(other, self)
        z = x.value / y.value
        return result(z, (x, lambda d: d / y.value), (y, lambda d: -d * z / y.value))

    def __pow__(self, power: float) -> Tensor:
        s = _lift(power, self).value  # a number, which needs no gradient
        return result(self.value**s, (self, lambda d: d * s * self.value ** (s - 1)))

    def __neg__(self) -> Tensor:
        return result(-self.value, (self, lambda d: -d))

    def __sub__(self, other: Any) -> Tensor:
        x, y = self, _lift(other, self)
        return result(x.value - y.value, (x, lambda d: d), (y, lambda d: -d))

    def __rsub__(self, other: Any) -> Tensor:
        return _lift(other, self) - self

    def __rtruediv__(self, other: Any) -> Tensor:
        return _lift(other, self) / self

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other: Tensor) -> Tensor:
        x, y = self.value, other.value
        if x.ndim == 1 or y.ndim == 1:  # a vector is a matrix with one row or column
            row = self.reshape((1, -1)) if x.ndim == 1 else self
            column = other.reshape((-1, 1)) if y.ndim == 1 else other
            return (row @ column).reshape(np.matmul(x, y).shape)
        return result(
            x @ y,
            (self, lambda d: d @ np.swapaxes(y, -1, -2)),
            (other, lambda d: np.swapaxes(x, -1, -2) @ d),
        )

    def _in_place(self, other: Any) -> Tensor:
        raise InvalidInput(
            "expected x = x + y or write_(x, ...), got an assignment in place such as "
            "x += y; the frameworks disagree whether it writes to x or makes a new one"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __imatmul__ = _in_place

    # -- shape -----------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        def spread(d: np.ndarray) -> np.ndarray:
            padded = np.zeros(self.shape, d.dtype)
            np.add.at(padded, index, d)  # unlike padded[index] += d, counts repeats
            return padded

        return result(self.value[index], (self, spread))

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same elements, in row-major order, in another shape."""
        z = self.value.reshape(*shape)
        return result(z, (self, lambda d: d.reshape(self.shape)))

    def sum(self) -> Tensor:
        """Sum all elements; the result has no dimension."""
        z = self.value.sum()
        return result(z, (self, lambda d: np.broadcast_to(d, self.shape)))


def _lift(other: Any, like: Tensor) -> Tensor:
    # A Python number takes the dtype of the tensor: NumPy would make a float32 of no
    # dimension, or one windows by a NumPy float64, into float64.
    if isinstance(other, Tensor):
        return other
    if not isinstance(other, numbers.Real):
        raise InvalidInput(
            f"expected a Tensor or a number, got {type(other).__name__}; "
            "make a tensor of it with array(value, device)"
        )
    dtype = like.dtype if like.dtype.kind in "fc" else None
    return Tensor(np.asarray(other, dtype=dtype))


def result(value: Any, *notes: tuple[Tensor, Pullback]) -> Tensor:
    """Return an operation's result; while recording, with the notes that it needs."""
    z = Tensor(value, device_of(*(x for x, _ in notes)))
    if _recorder.on:
        z.notes = tuple((x, pullback) for x, pullback in notes if x.in_graph)
        z.depth = 1 + max((x.depth for x, _ in z.notes), default=0)
    return z


def device_of(*inputs: Tensor) -> str:
    """Return the one device of an operation's inputs; a number may be on the CPU."""
    first = inputs[0].device
    if all(x.device == first for x in inputs):
        return first
    return one_device(x.device for x in inputs if x.shape or x.device != "cpu")


def _fit(d: np.ndarray, x: Tensor) -> np.ndarray:
    # Where broadcasting repeated x, sum the gradients of its copies.
    extra = d.ndim - x.value.ndim
    d = d.sum(axis=tuple(range(extra))) if extra else d
    repeated = [i for i, n in enumerate(x.shape) if n == 1 and d.shape[i] != 1]
    d = d.sum(axis=tuple(repeated), keepdims=True) if repeated else d
    return np.asarray(d)


def backward(ys: Sequence[Tensor], dys: Sequence[Tensor] | None = None) -> None:
    """Add d(sum of ys)/dx, each y weighted by its dy, to the gradient of every leaf."""
    for x, gradient, d in _run_backward(ys, dys, keep_graph=False):
        gradient.value += d
        if x.on_gradient is not None:
            x.on_gradient()


def grad_of(
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    dys: Sequence[Tensor] | None = None,
    keep_graph: bool = False,
) -> list[Tensor]:
    """Return the gradients of some leaves as new tensors; their own do not change."""
    by_id = {id(x): np.array(d) for x, _, d in _run_backward(ys, dys, keep_graph)}
    checks.check_recorded(id(x) in by_id for x in xs)
    return [Tensor(by_id[id(x)], x.device) for x in xs]


def _run_backward(
    ys: Sequence[Tensor], dys: Sequence[Tensor] | None, keep_graph: bool
) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
    # Yields every tensor that collects a gradient, its gradient, and the new part.
    checks.check_grads(ys, dys)
    checks.check_recorded([y.in_graph for y in ys])
    if dys is None:
        dys = [Tensor(np.ones_like(y.value), y.device) for y in ys]
    # The deepest tensor first: all results that use a tensor are deeper, so its
    # gradient is complete by then. Equal depths are in order of arrival, so that
    # every run and every replica rounds the sums in the same way.
    queue: list[tuple[int, int, Tensor]] = []
    total: dict[int, np.ndarray] = {}  # by id: the gradient of each tensor so far
    arrivals = itertools.count()

    def arrive(x: Tensor, d: np.ndarray) -> None:
        d = _fit(d, x)
        if id(x) in total:  # a fork: x was used more than once
            total[id(x)] = total[id(x)] + d  # never +=, d may be shared with others
        else:
            total[id(x)] = d
            heapq.heappush(queue, (-x.depth, next(arrivals), x))

    for y, dy in zip(ys, dys, strict=True):
        arrive(y, dy.value)
    while queue:
        *_, x = heapq.heappop(queue)
        d = total.pop(id(x))
        if x.gradient is not None:
            yield x, x.gradient, d
        checks.check_recorded([x.notes is not None])
        for parent, pullback in x.notes or ():
            arrive(parent, pullback(d))
        if x.notes and not keep_graph:
            x.notes = None  # a second pass would count everything twice


# -- convolution and pooling: a value and its pullbacks -----------------------------


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
        grad = fold(matrix.T @ d.reshape(flat), padded.shape, *W.shape[2:])
        return grad[:, :, padding:, padding:][:, :, : X.shape[2], : X.shape[3]]

    def into_W(d: np.ndarray) -> np.ndarray:
        per_example = d.reshape(flat) @ columns.swapaxes(1, 2)  # of every example
        return per_example.sum(axis=0).reshape(W.shape)

    return (matrix @ columns).reshape((len(X), len(W), h, w)), into_X, into_W


def unfold(X: np.ndarray, kh: int, kw: int) -> np.ndarray:
    """Copy X (batch, c, height, width) into columns (batch, c * kh * kw, h * w).

    Row (i, j) of a channel holds the factors of element (i, j) of the kernel.
    """
    batch, c, height, width = X.shape
    h, w = height - kh + 1, width - kw + 1
    windows = sliding_window_view(X, (1, 1, h, w))  # (batch, c, kh, kw, 1, 1, h, w)
    return windows.reshape((batch, c * kh * kw, h * w))


def fold(columns: np.ndarray, shape: tuple[int, ...], kh: int, kw: int) -> np.ndarray:
    """Sum columns at the places from which `unfold` copied them, in zeros like X."""
    batch, c, height, width = shape
    h, w = height - kh + 1, width - kw + 1
    windows = columns.reshape((batch, c, kh, kw, h, w))
    X = np.zeros(shape, columns.dtype)
    for i in range(kh):
        for j in range(kw):
            X[:, :, i : i + h, j : j + w] += windows[:, :, i, j]
    return X


def average(X: np.ndarray, size: int) -> tuple[np.ndarray, Pullback]:
    """Average disjoint windows of X (batch, c, height, width); and the pullback."""
    windows = cut(X, size)

    def spread(d: np.ndarray) -> np.ndarray:  # evenly to every pixel of a window
        per_pixel = d[..., None] / np.asarray(size * size, d.dtype)
        return join(np.broadcast_to(per_pixel, windows.shape), X, size)

    return windows.mean(axis=-1), spread


def largest(X: np.ndarray, size: int) -> tuple[np.ndarray, Pullback]:
    """Take the maximum of disjoint windows of X; and the pullback."""
    windows = cut(X, size)
    best = windows.argmax(axis=-1)[..., None]  # on a tie, the first gets all of it

    def to_best(d: np.ndarray) -> np.ndarray:
        out = np.zeros_like(windows)
        np.put_along_axis(out, best, d[..., None], axis=-1)
        return join(out, X, size)

    return np.take_along_axis(windows, best, axis=-1)[..., 0], to_best


def cut(X: np.ndarray, size: int) -> np.ndarray:
    """Cut X (batch, c, height, width) into (batch, c, h, w, size * size)."""
    batch, c, height, width = X.shape
    h, w = height // size, width // size
    cropped = X[:, :, : h * size, : w * size]  # drop what fills no window
    cropped = cropped.reshape((batch, c, h, size, w, size)).swapaxes(3, 4)
    return cropped.reshape((batch, c, h, w, size * size))


def join(windows: np.ndarray, X: np.ndarray, size: int) -> np.ndarray:
    """Write windows back to where they were cut from X, with zeros elsewhere."""
    batch, c, h, w, _ = windows.shape
    image = windows.reshape((batch, c, h, w, size, size)).swapaxes(3, 4)
    out = np.zeros(X.shape, X.dtype)
    out[:, :, : h * size, : w * size] = image.reshape((batch, c, h * size, w * size))
    return out
