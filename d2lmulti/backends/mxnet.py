"""The MXNet backend: the functions of `protocol.py` with `mx.np` arrays."""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import mxnet as mx
import numpy as np
from mxnet import autograd, npx
from mxnet.base import _LIB, NDArrayHandle, check_call
from mxnet.numpy import ndarray as Tensor

from .. import checks
from . import NUMPY_DTYPES, dtype_name, numeric, resolve_device, tracked_frameworks
from .common import view_at
from .protocol import AnyDevice, Context

name = "mxnet"
Tensors = Sequence[Tensor]

_level = logging.root.manager.disable
logging.disable(logging.INFO)  # set_np announces itself on stderr
npx.set_np(shape=2)  # scalars and empty tensors are legal; 2: in every thread
logging.disable(_level)


# -- devices ---------------------------------------------------------------------


def gpu_count() -> int:
    return _gpus()[0]


@cache
def _gpus() -> tuple[int, str]:
    """Count the GPUs; return also the error if MXNet cannot."""
    try:
        return mx.context.num_gpus(), ""
    except mx.MXNetError as error:  # for example, the driver is too old
        return 0, str(error).strip().splitlines()[-1]


def describe_gpus() -> list[str]:
    count, trouble = _gpus()
    built = mx.runtime.Features().is_enabled("CUDA")
    lines = ["CUDA in this build" if built else "CUDA not in this build"]
    if trouble:
        lines += [f"could not count GPUs: {trouble}"]
    for i in range(count):
        _, total = mx.context.gpu_memory_info(i)
        lines += [f"gpu:{i} {total / 2**30:.0f} GiB"]
    return lines


def native(device: AnyDevice) -> mx.Context:
    if isinstance(device, mx.Context):
        device = _name(device)
    kind, index = resolve_device(device, gpu_count(), name)
    if kind == "sim":
        return mx.cpu(index + 1)  # cpu(0) is the host
    return mx.gpu(index) if kind == "gpu" else mx.cpu()


def device_of(x: Tensor) -> str:
    return _name(x.ctx)


def _name(ctx: mx.Context) -> str:
    if ctx.device_type == "gpu":
        return f"gpu:{ctx.device_id}"
    return f"sim:{ctx.device_id - 1}" if ctx.device_id else "cpu"


def synchronize() -> None:
    npx.waitall()


# -- storage ---------------------------------------------------------------------


def array(value: np.ndarray | Sequence, device: AnyDevice = "cpu") -> Tensor:
    return mx.np.array(numeric(value, NUMPY_DTYPES), ctx=native(device))


def numpy(x: Tensor) -> np.ndarray:
    return x.asnumpy()


def zeros(shape: Sequence[int], dtype: str, device: AnyDevice = "cpu") -> Tensor:
    dtype = dtype_name(dtype, NUMPY_DTYPES)
    return mx.np.zeros(tuple(shape), dtype=dtype, ctx=native(device))


def dtype_of(x: Tensor) -> str:
    return np.dtype(x.dtype).name


def copy_to(x: Tensor, device: AnyDevice) -> Tensor:
    if x.size == 0:  # copyto on an empty array never completes its shape check
        return mx.np.zeros(x.shape, dtype=x.dtype, ctx=native(device))
    return x.detach().copyto(native(device))


def cast(x: Tensor, dtype: str) -> Tensor:
    return x.detach().astype(dtype_name(dtype, NUMPY_DTYPES))


def read(x: Tensor, first: int, last: int) -> Tensor:
    checks.check_part(x, first, last)
    if first == last:  # an empty slice of mx.np has no storage to take a view of
        return mx.np.zeros((0,), dtype=x.dtype, ctx=x.ctx)
    with autograd.pause():
        flat = x.detach() if len(x.shape) == 1 else x.detach().reshape_view(-1)
        handle = NDArrayHandle()  # flat[first:last], in a fifth of the calls
        check_call(_LIB.MXNDArraySlice(flat.handle, first, last, ctypes.byref(handle)))
        return Tensor(handle=handle)


def write_(x: Tensor, first: int, last: int, y: Tensor, add: bool = False) -> None:
    into, values = memory(x), memory(y)
    if tracked_frameworks and x.ctx != y.ctx:
        into = None  # let MXNet copy below, which is reported
    if into is not None and values is not None:
        checks.check_write(into, first, last, values)
        if add:  # MXNet adds one element at a time, at a quarter of NumPy's speed
            into[first:last] += values
        else:
            into[first:last] = values
        return
    checks.check_write(x, first, last, y)
    if first == last:
        return
    with autograd.pause():
        part = x.detach().reshape_view(-1)[first:last]  # reshape() would copy
        y = y.detach().reshape_view(-1)
        if add:
            part += y.as_in_ctx(x.ctx)
        else:
            y.copyto(part)  # a fifth of the cost of part[:] = y


def maximum_(x: Tensor, first: int, last: int, y: Tensor) -> None:
    checks.check_write(x, first, last, y)
    if first == last:
        return
    with autograd.pause():
        part = x.detach().reshape_view(-1)[first:last]
        y = y.detach().reshape_view(-1).as_in_ctx(x.ctx)
        if x.dtype != bool:
            mx.np.maximum(part, y, out=part)
        else:  # MXNet has no maximum of bool, but it is the sum
            part += y


def memory(x: Tensor) -> np.ndarray | None:
    if x.ctx.device_type == "gpu":
        return None
    npx.waitall()
    address = ctypes.c_void_p()
    if x.size:  # an empty array has no storage to ask for
        check_call(_LIB.MXNDArrayGetData(x.handle, ctypes.byref(address)))
    return view_at(address.value, x.size, dtype_of(x))


# -- autograd --------------------------------------------------------------------


def attach_grad(x: Tensor, add: bool = True) -> None:
    x.attach_grad(grad_req="add" if add else "write")


def collects_grad(x: Tensor) -> bool:
    return x.grad is not None


def accumulating(xs: Tensors) -> list[Tensor]:
    leaves = [x.detach() for x in xs]  # the grad_req of an x cannot be read
    autograd.mark_variables(leaves, [grad(x) for x in xs], "add")
    return leaves


def record() -> Context:
    return autograd.record()


def pause() -> Context:
    return autograd.pause()


def backward(ys: Tensors, dys: Tensors | None = None) -> None:
    checks.check_grads(ys, dys)
    autograd.backward(list(ys), list(dys) if dys is not None else None)


def grad_of(
    ys: Tensors, xs: Tensors, dys: Tensors | None = None, keep_graph: bool = False
) -> list[Tensor]:
    checks.check_grads(ys, dys)
    heads = list(dys) if dys is not None else None
    grads = autograd.grad(list(ys), list(xs), heads, retain_graph=keep_graph)
    return [dx.as_np_ndarray() for dx in grads]  # grad() returns legacy arrays


@contextmanager
def on_grad_ready(params: Tensors, ready: Callable[[int], None]) -> Iterator[None]:
    yield
    # MXNet has no hooks, but backward is asynchronous: wait from its end.
    for i in reversed(range(len(params))):
        grad(params[i]).wait_to_read()
        ready(i)


def grad(x: Tensor) -> Tensor:
    gradient = x.grad
    if gradient is None:
        raise checks.not_attached()
    return gradient


def move_grad(x: Tensor, flat: Tensor, first: int) -> bool:
    return False  # an array's gradient is made with it


def clear_grad_(x: Tensor) -> None:
    gradient = grad(x)
    values = memory(gradient)
    (gradient if values is None else values)[:] = 0  # NumPy takes 1/4 of the time


def detach(x: Tensor) -> Tensor:
    return x.detach()


# -- operations ------------------------------------------------------------------


def sum(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.sum(axis=axis, keepdims=keepdims)


def max(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.detach().max(axis=axis, keepdims=keepdims)


def exp(x: Tensor) -> Tensor:
    return mx.np.exp(x)


def log(x: Tensor) -> Tensor:
    return mx.np.log(x)


def sqrt(x: Tensor) -> Tensor:
    return mx.np.sqrt(x.detach())


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.transpose(*axes)


def concat(xs: Tensors, axis: int = 0) -> Tensor:
    return mx.np.concatenate(list(xs), axis=axis)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    return x.argmax(axis=axis)


def relu(x: Tensor) -> Tensor:
    return npx.relu(x)


def gelu(x: Tensor) -> Tensor:
    if dtype_of(x) != "float64":
        return npx.leaky_relu(x, act_type="gelu")
    # MXNet computes gelu, and the gradient of erf, in float32 only. The added zero has
    # the exact gradient: d Phi(x) = phi(x) dx.
    with autograd.pause():
        Phi = (npx.erf(x / math.sqrt(2)) + 1) / 2
        phi = mx.np.exp(x * x / -2) / math.sqrt(2 * math.pi)
    return x * (Phi + phi * (x - x.detach()))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return npx.softmax(x, axis=axis)


def conv2d(X: Tensor, W: Tensor, b: Tensor | None, padding: int = 0) -> Tensor:
    c_out, kernel, pad = W.shape[0], W.shape[2:], (padding, padding)
    return npx.convolution(
        X, W, b, num_filter=c_out, kernel=kernel, pad=pad, no_bias=b is None
    )


def avg_pool2d(X: Tensor, size: int) -> Tensor:
    return npx.pooling(X, kernel=(size,) * 2, stride=(size,) * 2, pool_type="avg")


def max_pool2d(X: Tensor, size: int) -> Tensor:
    return npx.pooling(X, kernel=(size,) * 2, stride=(size,) * 2, pool_type="max")


def embedding(ids: Tensor, W: Tensor) -> Tensor:
    rows, columns = W.shape
    return npx.embedding(ids, W, input_dim=rows, output_dim=columns, dtype=W.dtype)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return npx.layer_norm(x, gamma, beta, axis=-1, eps=eps)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return -npx.pick(npx.log_softmax(logits, axis=-1), y, axis=-1)
