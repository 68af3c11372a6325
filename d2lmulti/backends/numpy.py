"""The NumPy backend: all functions of `protocol.py`, with values and gradients.

This is the reference: the three frameworks are tested against it, and it is tested
against finite differences. It is for reading and for tests, not for speed. Operations
pass `result` their value and one pullback per input (see `autograd.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from .. import checks
from . import (
    NUMPY_DTYPES,
    autograd,
    dtype_name,
    numeric,
    resolve_device,
    tracked_frameworks,
    tracking,
)
from .autograd import Tensor, result
from .common import Reporter
from .protocol import AnyDevice, Context

name = "numpy"
Tensors = Sequence[Tensor]


# -- devices ---------------------------------------------------------------------


def gpu_count() -> int:
    return 0


def native(device: AnyDevice) -> str:
    kind, index = resolve_device(device, gpu_count(), name)
    return f"sim:{index}" if kind == "sim" else kind


def device_of(x: Tensor) -> str:
    return x.device


def synchronize() -> None:
    return None  # NumPy has finished before it returns


# -- storage ---------------------------------------------------------------------


def array(value: np.ndarray | Sequence, device: AnyDevice = "cpu") -> Tensor:
    return Tensor(np.array(numeric(value, NUMPY_DTYPES)), native(device))


def numpy(x: Tensor) -> np.ndarray:
    return np.array(x.value, order="C")


def zeros(shape: Sequence[int], dtype: str, device: AnyDevice = "cpu") -> Tensor:
    value = np.zeros(tuple(shape), dtype_name(dtype, NUMPY_DTYPES))
    return Tensor(value, native(device))


def dtype_of(x: Tensor) -> str:
    return x.dtype.name


def copy_to(x: Tensor, device: AnyDevice) -> Tensor:
    _report(x, target := native(device))
    return Tensor(np.array(x.value, order="C"), target)


def _report(x: Tensor, target: str) -> None:
    if tracked_frameworks:
        tracking.report_copy(x.device, target, x.value.size, x.value.itemsize)


def cast(x: Tensor, dtype: str) -> Tensor:
    with np.errstate(over="ignore"):  # the result is inf, as on other backends
        return Tensor(x.value.astype(dtype_name(dtype, NUMPY_DTYPES)), x.device)


def read(x: Tensor, first: int, last: int) -> Tensor:
    checks.check_part(x, first, last)
    return Tensor(x.value.reshape(-1)[first:last], x.device)


def write_(x: Tensor, first: int, last: int, y: Tensor, add: bool = False) -> None:
    checks.check_write(x, first, last, y)
    checks.check_contiguous(x.value.flags.c_contiguous)
    _report(y, x.device)
    part = x.value.reshape(-1)[first:last]  # a view, because x is contiguous
    if add:
        part += y.value.reshape(-1)
    else:
        part[:] = y.value.reshape(-1)


def maximum_(x: Tensor, first: int, last: int, y: Tensor) -> None:
    checks.check_write(x, first, last, y)
    checks.check_contiguous(x.value.flags.c_contiguous)
    _report(y, x.device)
    part = x.value.reshape(-1)[first:last]
    np.maximum(part, y.value.reshape(-1), out=part)


def memory(x: Tensor) -> np.ndarray | None:
    return x.value.reshape(-1) if x.value.flags.c_contiguous else None


# -- autograd --------------------------------------------------------------------


def attach_grad(x: Tensor, add: bool = True) -> None:
    checks.check_leaf(x.notes == ())
    x.gradient = Tensor(np.zeros_like(x.value, order="C"), x.device)


def collects_grad(x: Tensor) -> bool:
    return x.gradient is not None


def accumulating(xs: Tensors) -> list[Tensor]:
    return list(xs)


def record() -> Context:
    return autograd.recording(True)


def pause() -> Context:
    return autograd.recording(False)


def backward(ys: Tensors, dys: Tensors | None = None) -> None:
    autograd.backward(ys, dys)


def grad_of(
    ys: Tensors, xs: Tensors, dys: Tensors | None = None, keep_graph: bool = False
) -> list[Tensor]:
    return autograd.grad_of(ys, xs, dys, keep_graph)


@contextmanager
def on_grad_ready(params: Tensors, ready: Callable[[int], None]) -> Iterator[None]:
    reporter = Reporter(len(params), ready)
    for i, p in enumerate(params):
        p.on_gradient = partial(reporter.report, i)
    try:
        yield
    finally:
        for p in params:
            p.on_gradient = None
    reporter.report_rest()


def grad(x: Tensor) -> Tensor:
    if x.gradient is None:
        raise checks.not_attached()
    return x.gradient


def move_grad(x: Tensor, flat: Tensor, first: int) -> bool:
    part = flat.value[first : first + x.value.size].reshape(x.shape)
    if x.gradient is not None:
        part[...] = x.gradient.value
    x.gradient = Tensor(part, x.device)
    return True


def clear_grad_(x: Tensor) -> None:
    grad(x).value[...] = 0


def detach(x: Tensor) -> Tensor:
    return Tensor(x.value, x.device)


# -- operations: d is the gradient of the result -----------------------------------


def sum(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    def spread(d: np.ndarray) -> np.ndarray:  # each element of the sum has gradient d
        return np.broadcast_to(d if keepdims else np.expand_dims(d, axis), x.shape)

    total = x.value.sum(axis=axis, keepdims=True)
    return result(total if keepdims else total.squeeze(axis), (x, spread))


def max(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    largest = x.value.max(axis=axis, keepdims=True)
    return Tensor(largest if keepdims else largest.squeeze(axis), x.device)


def exp(x: Tensor) -> Tensor:
    e = np.exp(x.value)
    return result(e, (x, lambda d: d * e))


def log(x: Tensor) -> Tensor:
    return result(np.log(x.value), (x, lambda d: d / x.value))


def sqrt(x: Tensor) -> Tensor:
    return Tensor(np.sqrt(x.value), x.device)


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    back = np.argsort(axes)  # the permutation that undoes this one
    return result(x.value.transpose(axes), (x, lambda d: d.transpose(back)))


def concat(xs: Tensors, axis: int = 0) -> Tensor:
    ends = np.cumsum([x.shape[axis] for x in xs])

    def part(i: int) -> autograd.Pullback:
        return lambda d: np.split(d, ends[:-1], axis)[i]

    value = np.concatenate([x.value for x in xs], axis)
    return result(value, *((x, part(i)) for i, x in enumerate(xs)))


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    index = x.value.argmax(axis).astype("int64")
    return Tensor(index, x.device)  # no gradient: it jumps


def relu(x: Tensor) -> Tensor:
    return result(np.maximum(x.value, 0), (x, lambda d: d * (x.value > 0)))


def gelu(x: Tensor) -> Tensor:
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    Phi = (1 + erf(x.value / _like(x, math.sqrt(2)))) / _like(x, 2)
    phi = np.exp(-x.value * x.value / _like(x, 2)) / _like(x, math.sqrt(2 * math.pi))
    return result(x.value * Phi, (x, lambda d: d * (Phi + x.value * phi)))


def _like(x: Tensor, number: float) -> np.ndarray:
    return np.asarray(number, x.dtype)  # a plain number could make float32 float64


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))  # at most 1, so it cannot overflow
    return e / e.sum(axis, keepdims=True)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    p = _softmax(x.value, axis)
    return result(p, (x, lambda d: p * (d - (d * p).sum(axis, keepdims=True))))


def conv2d(X: Tensor, W: Tensor, b: Tensor | None, padding: int = 0) -> Tensor:
    value, into_X, into_W = autograd.correlate(X.value, W.value, padding)
    z = result(value, (X, into_X), (W, into_W))
    return z if b is None else z + b.reshape((-1, 1, 1))


def avg_pool2d(X: Tensor, size: int) -> Tensor:
    checks.check_window(X, size)
    value, spread = autograd.average(X.value, size)
    return result(value, (X, spread))


def max_pool2d(X: Tensor, size: int) -> Tensor:
    checks.check_window(X, size)
    value, to_largest = autograd.largest(X.value, size)
    return result(value, (X, to_largest))


def embedding(ids: Tensor, W: Tensor) -> Tensor:
    autograd.device_of(ids, W)
    checks.check_ids(ids.value, len(W))
    return W[ids.value]  # the tape sums the gradients of repeated ids


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    def mean(v: np.ndarray) -> np.ndarray:
        return v.mean(axis=-1, keepdims=True)

    centered = x.value - mean(x.value)
    std = np.sqrt(mean(centered * centered) + _like(x, eps))
    normal = centered / std

    def into_x(d: np.ndarray) -> np.ndarray:  # mean and variance depend on x as well
        d = d * gamma.value
        return (d - mean(d) - normal * mean(d * normal)) / std

    return result(
        normal * gamma.value + beta.value,
        (x, into_x),
        (gamma, lambda d: d * normal),  # summed to gamma's shape by the tape
        (beta, lambda d: d),
    )


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    autograd.device_of(logits, y)
    checks.check_ids(y.value, logits.shape[-1])
    # -log softmax(z)[y] = log(sum(exp(z))) - z[y]; no z above 0, so exp cannot overflow
    rows = np.arange(len(logits))
    z = logits.value - logits.value.max(axis=-1, keepdims=True)
    losses = np.log(np.exp(z).sum(axis=-1)) - z[rows, y.value]

    def into_logits(d: np.ndarray) -> np.ndarray:
        p = _softmax(logits.value, -1)
        p[rows, y.value] -= 1
        return p * d[:, None]

    return result(losses, (logits, into_logits))
