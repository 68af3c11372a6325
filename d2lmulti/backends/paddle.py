"""The Paddle backend: the functions of `protocol.py` with Paddle's tensors."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

with warnings.catch_warnings():  # that ccache is missing does not matter
    warnings.filterwarnings("ignore", message=".*ccache")
    import paddle

import paddle.nn.functional as F
from paddle import Tensor

from .. import checks
from ..errors import DeviceUnavailable
from . import DTYPES, dtype_name, numeric, parse_device, resolve_device
from .common import Reporter, view_at
from .protocol import AnyDevice, Context

name = "paddle"
Tensors = Sequence[Tensor]
# On the CPU Paddle computes no sums of the first two, and no maxima of all but one.
_WIDER = {"float16": "float32", "bfloat16": "float32"}
_WIDER |= dict.fromkeys(("uint8", "bool"), "int32")


# -- devices ---------------------------------------------------------------------


def gpu_count() -> int:
    # Paddle computes on its current GPU, wherever the tensors are. With tensors on two
    # GPUs a process would access invalid memory, so each process uses one.
    return min(1, paddle.device.cuda.device_count())


def own_gpu(local_rank: int, local_size: int) -> int | None:
    if paddle.device.cuda.device_count() < local_size:
        return None
    chosen = os.environ.get("FLAGS_selected_gpus")  # by Paddle's own launcher
    return int(chosen.partition(",")[0]) if chosen else local_rank


_used: list[int] = []  # the number of this process's GPU, once there is one


def _use(index: int) -> paddle.CUDAPlace:
    """Make this the current GPU; raise for a second one."""
    if not _used:
        paddle.set_device(f"gpu:{index}")
        _used.append(index)
    if _used != [index]:
        raise DeviceUnavailable(
            f"expected gpu:{_used[0]}, the one GPU of this process, got gpu:{index}; "
            "Paddle computes on one GPU per process: launch a process for each"
        )
    return paddle.CUDAPlace(index)


def describe_gpus() -> list[str]:
    cuda, nccl = paddle.version.cuda(), paddle.version.nccl()
    lines = [f"CUDA {cuda}, NCCL {nccl}; one GPU per process" if cuda != "False"
             else "CUDA not in this build"]  # fmt: skip
    for i in range(paddle.device.cuda.device_count()):
        p = paddle.device.cuda.get_device_properties(i)
        memory = f"{p.total_memory / 2**30:.0f} GiB"
        lines += [f"gpu:{i} {p.name}, {memory}, capability {p.major}.{p.minor}"]
    return lines


def native(device: AnyDevice) -> paddle.base.core.Place:
    if isinstance(device, (paddle.CPUPlace, paddle.CUDAPlace, paddle.base.core.Place)):
        device = str(device).removeprefix("Place(").removesuffix(")")
    count = paddle.device.cuda.device_count()
    kind, index = resolve_device(device, count, name)
    if kind == "cpu":
        return paddle.CPUPlace()
    if parse_device(device)[0] == "sim":  # all are on the one GPU of the process
        index = _used[0] if _used else own_gpu(0, 1) or 0
    return _use(index)


def device_of(x: Tensor) -> str:
    return "cpu" if x.place.is_cpu_place() else f"gpu:{x.place.gpu_device_id()}"


def synchronize() -> None:
    for i in _used:
        paddle.device.synchronize(f"gpu:{i}")


# -- storage ---------------------------------------------------------------------


def array(value: np.ndarray | Sequence, device: AnyDevice = "cpu") -> Tensor:
    return paddle.to_tensor(numeric(value, DTYPES), place=native(device))


def numpy(x: Tensor) -> np.ndarray:
    x = x.detach() if dtype_of(x) != "bfloat16" else cast(x, "float32")  # as NumPy can
    return np.array(x.numpy())


def zeros(shape: Sequence[int], dtype: str, device: AnyDevice = "cpu") -> Tensor:
    dtype = dtype_name(dtype, DTYPES)
    held = "uint16" if dtype == "bfloat16" else dtype  # as Paddle reads it
    return paddle.to_tensor(np.zeros(tuple(shape), held), place=native(device))


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("paddle.")


def copy_to(x: Tensor, device: AnyDevice) -> Tensor:
    target = native(device)
    if x.place._equals(target):
        return x.detach().clone()  # x.to(...) would return x itself
    return x.detach().contiguous()._copy_to(target, True)


def cast(x: Tensor, dtype: str) -> Tensor:
    return x.detach().clone().astype(dtype_name(dtype, DTYPES))


def read(x: Tensor, first: int, last: int) -> Tensor:
    checks.check_part(x, first, last)
    return _flat(x)[first:last]


def _flat(x: Tensor) -> Tensor:
    x = x.detach()
    if x.ndim == 1:
        return x
    # reshape gives a view, but of a scalar it gives a copy
    return x.reshape([-1]) if x.ndim else x.unsqueeze(0)


def write_(x: Tensor, first: int, last: int, y: Tensor, add: bool = False) -> None:
    checks.check_write(x, first, last, y)
    if first == last:  # Paddle's slice write raises, and calls an empty part strided
        return
    checks.check_contiguous(x.is_contiguous())
    with paddle.no_grad():
        flat, y = _flat(x), _flat(y)
        if not y.place._equals(x.place):
            y = y._copy_to(x.place, True)
        part = flat[first:last]
        if add and _WIDER.get(dtype_of(x)) == "float32":  # no sum of these on the CPU
            y = (part.astype("float32") + y.astype("float32")).astype(x.dtype)
            add = False
        if not part._is_shared_buffer_with(x):  # with FLAGS_use_stride_kernel=0
            flat[first:last] = part + y if add else y
        elif add:
            part.add_(y)  # flat[first:last] += y would not reach x
        else:
            part.copy_(y, False)  # in half the time of flat[first:last] = y


def maximum_(x: Tensor, first: int, last: int, y: Tensor) -> None:
    checks.check_write(x, first, last, y)
    if first == last:  # Paddle has no maximum of empty tensors
        return
    with paddle.no_grad():
        part, y = read(x, first, last), copy_to(y, x.place).reshape([-1])
        wide = _WIDER.get(dtype_of(x), x.dtype)
        larger = paddle.maximum(part.astype(wide), y.astype(wide))
        write_(x, first, last, larger.astype(x.dtype))


def memory(x: Tensor) -> np.ndarray | None:
    if not x.place.is_cpu_place() or not x.is_contiguous():
        return None
    count = math.prod(x.shape)  # x.size is an operation and takes 8 microseconds
    return view_at(x.data_ptr() if count else None, count, dtype_of(x))


# -- autograd --------------------------------------------------------------------


def attach_grad(x: Tensor, add: bool = True) -> None:
    checks.check_leaf(x.is_leaf)
    x.stop_gradient = False
    x.grad = paddle.zeros_like(x)


def collects_grad(x: Tensor) -> bool:
    return not x.stop_gradient


def accumulating(xs: Tensors) -> list[Tensor]:
    return list(xs)


def record() -> Context:
    return paddle.enable_grad()


def pause() -> Context:
    return paddle.no_grad()


def backward(ys: Tensors, dys: Tensors | None = None) -> None:
    checks.check_grads(ys, dys)
    checks.check_recorded([not y.stop_gradient for y in ys])  # Paddle would not raise
    paddle.autograd.backward(list(ys), list(dys) if dys is not None else None)


def grad_of(
    ys: Tensors, xs: Tensors, dys: Tensors | None = None, keep_graph: bool = False
) -> list[Tensor]:
    checks.check_grads(ys, dys)
    checks.check_recorded([not y.stop_gradient for y in ys])
    heads = list(dys) if dys is not None else None
    return list(paddle.grad(list(ys), list(xs), heads, retain_graph=keep_graph))


@contextmanager
def on_grad_ready(params: Tensors, ready: Callable[[int], None]) -> Iterator[None]:
    reporter = Reporter(len(params), ready)
    arrived: list[int] = []

    def arrive(i: int, _: Tensor) -> None:
        if arrived:  # Paddle calls hooks before it adds: the previous one is ready
            reporter.report(arrived.pop())
        arrived.append(i)

    with ExitStack() as hooks:
        for i, p in enumerate(params):
            hooks.callback(p.register_hook(partial(arrive, i)).remove)
        yield
    for i in arrived:
        reporter.report(i)
    reporter.report_rest()


def grad(x: Tensor) -> Tensor:
    gradient = x.grad  # a new handle to the same storage at every access
    if gradient is None:
        raise checks.not_attached()
    return gradient.detach()


def move_grad(x: Tensor, flat: Tensor, first: int) -> bool:
    return False  # an assigned gradient is copied


def clear_grad_(x: Tensor) -> None:
    if x.grad is None and not x.stop_gradient:  # no backward pass yet, or set to None
        attach_grad(x)
        return
    with paddle.no_grad():
        grad(x).zero_()


def detach(x: Tensor) -> Tensor:
    return x.detach()


# -- operations ------------------------------------------------------------------


def sum(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.sum(axis=axis, keepdim=keepdims)


def max(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.detach().max(axis=axis, keepdim=keepdims)


def exp(x: Tensor) -> Tensor:
    return paddle.exp(x)


def log(x: Tensor) -> Tensor:
    return paddle.log(x)


def sqrt(x: Tensor) -> Tensor:
    # In float32 two of five are one bit off; rounded from float64, all are exact.
    return paddle.sqrt(x.detach().astype("float64")).astype(x.dtype)


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.transpose(list(axes))


def concat(xs: Tensors, axis: int = 0) -> Tensor:
    return paddle.concat(list(xs), axis=axis)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    return x.argmax(axis=axis)


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return F.softmax(x, axis=axis)


def conv2d(X: Tensor, W: Tensor, b: Tensor | None, padding: int = 0) -> Tensor:
    return F.conv2d(X, W, b, padding=padding)


def avg_pool2d(X: Tensor, size: int) -> Tensor:
    checks.check_window(X, size)
    if size & (size - 1) == 0:
        return F.avg_pool2d(X, size)
    # Its gradient divides in float32, which is exact only for powers of two.
    batch, c, height, width = X.shape
    h, w = height // size, width // size
    X = X[:, :, : h * size, : w * size].reshape([batch, c, h, size, w, size])
    return X.mean(axis=[3, 5])


def max_pool2d(X: Tensor, size: int) -> Tensor:
    checks.check_window(X, size)
    return F.max_pool2d(X, size)


def embedding(ids: Tensor, W: Tensor) -> Tensor:
    return F.embedding(ids, W)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    # With gamma, Paddle omits it from x's gradient if gamma itself needs none.
    return F.layer_norm(x, x.shape[-1:], None, None, eps) * gamma + beta


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    # F.cross_entropy clips every loss at 64, which would hide divergence.
    chosen = paddle.take_along_axis(logits, y.unsqueeze(-1), axis=-1).squeeze(-1)
    return paddle.logsumexp(logits, axis=-1) - chosen
