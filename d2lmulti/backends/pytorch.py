"""The PyTorch backend: the functions of `protocol.py` with PyTorch's tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import cache, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import checks
from . import BFLOAT16, DTYPES, dtype_name, numeric, resolve_device
from .common import Reporter
from .protocol import AnyDevice, Context

name = "torch"
Tensors = Sequence[Tensor]

if os.environ.get("D2LMULTI_DETERMINISTIC"):  # PyTorch has no variable of its own
    torch.backends.cudnn.deterministic = True


# -- devices ---------------------------------------------------------------------


@cache
def gpu_count() -> int:
    if not torch.cuda.is_available():  # device_count() also counts for an old driver
        return 0
    gpus = range(torch.cuda.device_count())
    return next((i for i in gpus if _trouble(i)), len(gpus))


def _trouble(i: int) -> str:
    """Return why PyTorch cannot compute on GPU i; an empty string if it can."""
    try:
        has = torch.cuda.get_device_capability(i)
    except (AssertionError, RuntimeError) as error:  # such as for a part of a GPU (MIG)
        return str(error).partition("\n")[0]
    # Names such as sm_80 (8.0 to 8.9) and compute_120 (12.0 and later).
    names = torch.cuda.get_arch_list()
    matches = [re.match(r"(sm|compute)_(\d+)(\d)", name) for name in names]
    built = [(m[1], (int(m[2]), int(m[3]))) for m in matches if m]
    if not built or any(
        version <= has and (kind == "compute" or version[0] == has[0])
        for kind, version in built
    ):
        return ""
    return f"no kernels for capability {has[0]}.{has[1]}, only for {' '.join(names)}"


def describe_gpus() -> list[str]:
    nccl = ""
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        nccl = f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    lines = [f"CUDA {torch.version.cuda or 'not in this build'}{nccl}"]
    if not torch.cuda.is_available():
        if count := torch.cuda.device_count():
            lines += [f"the driver lists {count} GPUs, but {_why_no_cuda()}"]
        return lines
    for i in range(torch.cuda.device_count()):
        if trouble := _trouble(i):
            lines += [f"gpu:{i} is not used, nor are those after it: {trouble}"]
            break
        p = torch.cuda.get_device_properties(i)
        memory = f"{p.total_memory / 2**30:.0f} GiB"
        lines += [f"gpu:{i} {p.name}, {memory}, capability {p.major}.{p.minor}"]
    return lines


def _why_no_cuda() -> str:
    try:
        torch.zeros(1, device="cuda")
    except (AssertionError, RuntimeError) as error:
        return str(error).partition("\n")[0]
    return "torch.cuda.is_available() is False"


def native(device: AnyDevice) -> torch.device:
    if isinstance(device, torch.device):
        kind, index = device.type, device.index  # "mps" raises an error by its name
        if kind == "cuda":
            device = f"gpu:{index or 0}"
        else:  # a numbered CPU is a simulated device
            device = f"sim:{index}" if kind == "cpu" and index is not None else kind
    kind, index = resolve_device(device, gpu_count(), name)
    if kind == "sim":
        return torch.device("cpu", index)
    return torch.device("cuda", index) if kind == "gpu" else torch.device("cpu")


def device_of(x: Tensor) -> str:
    device = x.device
    if device.type == "cpu":
        return "cpu" if device.index is None else f"sim:{device.index}"
    return f"gpu:{device.index}"


def synchronize() -> None:
    # On a GPU that this process does not use, there is nothing to wait for, and the
    # call would allocate a CUDA context of about 400 MB.
    for i in range(gpu_count()):
        if torch._C._cuda_hasPrimaryContext(i):
            torch.cuda.synchronize(i)


# -- storage ---------------------------------------------------------------------


def array(value: np.ndarray | Sequence, device: AnyDevice = "cpu") -> Tensor:
    return torch.tensor(numeric(value, DTYPES), device=native(device))


def numpy(x: Tensor) -> np.ndarray:
    x = x.detach().cpu()
    x = x.float() if x.dtype == torch.bfloat16 else x  # NumPy has none; it is exact
    return x.numpy().copy()


def zeros(shape: Sequence[int], dtype: str, device: AnyDevice = "cpu") -> Tensor:
    return torch.zeros(
        tuple(shape),
        dtype=getattr(torch, dtype_name(dtype, DTYPES)),
        device=native(device),
    )


def dtype_of(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def copy_to(x: Tensor, device: AnyDevice) -> Tensor:
    return x.detach().to(  # plain .to() may return x itself, or keep its strides
        native(device), copy=True, memory_format=torch.contiguous_format
    )


def cast(x: Tensor, dtype: str) -> Tensor:
    return x.detach().to(getattr(torch, dtype_name(dtype, DTYPES)), copy=True)


def read(x: Tensor, first: int, last: int) -> Tensor:
    checks.check_part(x, first, last)
    return x.detach().reshape(-1)[first:last]


def write_(x: Tensor, first: int, last: int, y: Tensor, add: bool = False) -> None:
    checks.check_write(x, first, last, y)
    part = x.detach().view(-1)[first:last]
    y = y.detach().reshape(-1)
    if add:
        part.add_(y.to(x.device))
    else:
        part.copy_(y)


def maximum_(x: Tensor, first: int, last: int, y: Tensor) -> None:
    checks.check_write(x, first, last, y)
    part = x.detach().view(-1)[first:last]
    torch.maximum(part, y.detach().reshape(-1).to(x.device), out=part)


def memory(x: Tensor) -> np.ndarray | None:
    if not x.is_cpu or not x.is_contiguous():
        return None
    flat = x.detach() if x.requires_grad else x
    flat = flat if flat.dim() == 1 else flat.view(-1)
    if x.dtype == torch.bfloat16:
        return flat.view(torch.int16).numpy().view(BFLOAT16)
    return flat.numpy()


# -- autograd --------------------------------------------------------------------


def attach_grad(x: Tensor, add: bool = True) -> None:
    checks.check_leaf(x.is_leaf)
    x.requires_grad_(True)
    x.grad = torch.zeros_like(x, memory_format=torch.contiguous_format)


def collects_grad(x: Tensor) -> bool:
    return x.requires_grad


def accumulating(xs: Tensors) -> list[Tensor]:
    return list(xs)


def record() -> Context:
    return torch.enable_grad()


def pause() -> Context:
    return torch.no_grad()


def backward(ys: Tensors, dys: Tensors | None = None) -> None:
    torch.autograd.backward(list(ys), _heads(ys, dys))


def grad_of(
    ys: Tensors, xs: Tensors, dys: Tensors | None = None, keep_graph: bool = False
) -> list[Tensor]:
    heads = _heads(ys, dys)
    return list(torch.autograd.grad(list(ys), list(xs), heads, retain_graph=keep_graph))


def _heads(ys: Tensors, dys: Tensors | None) -> list[Tensor | None]:
    checks.check_grads(ys, dys)
    if dys is not None:
        return list(dys)
    # None: one, for a scalar; to compare shapes PyTorch would import SymPy (0.4 s).
    return [None if y.numel() == 1 else torch.ones_like(y) for y in ys]


@contextmanager
def on_grad_ready(params: Tensors, ready: Callable[[int], None]) -> Iterator[None]:
    reporter = Reporter(len(params), ready)
    # Gradients on a GPU are ready in another thread, which has no context variables.
    with ExitStack() as hooks:
        for i, p in enumerate(params):
            report = partial(copy_context().run, reporter.report, i)
            hooks.callback(p.register_post_accumulate_grad_hook(report).remove)
        yield
    reporter.report_rest()


def grad(x: Tensor) -> Tensor:
    if x.grad is None:
        raise checks.not_attached()
    return x.grad


def move_grad(x: Tensor, flat: Tensor, first: int) -> bool:
    part = flat.detach()[first : first + x.numel()].view_as(x)
    if x.grad is not None and x.grad.data_ptr() != part.data_ptr():
        part.copy_(x.grad)
    x.grad = part
    return True


def clear_grad_(x: Tensor) -> None:
    if x.grad is None and x.requires_grad:  # no backward pass yet, or set to None
        attach_grad(x)
    else:
        grad(x).zero_()


def detach(x: Tensor) -> Tensor:
    return x.detach()


# -- operations ------------------------------------------------------------------


def sum(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.sum(dim=axis, keepdim=keepdims)


def max(x: Tensor, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    return x.detach().amax(dim=axis, keepdim=keepdims)


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def log(x: Tensor) -> Tensor:
    return torch.log(x)


def sqrt(x: Tensor) -> Tensor:
    if x.is_cuda:
        return torch.sqrt(x.detach())
    # On the CPU PyTorch calls MKL, which is one bit off in one element out of 150.
    root = torch.empty_like(x.detach())
    np.sqrt(x.detach().numpy(), out=root.numpy())
    return root


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    return x.permute(*axes)


def concat(xs: Tensors, axis: int = 0) -> Tensor:
    return torch.cat(list(xs), dim=axis)


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    return x.argmax(dim=axis)


def relu(x: Tensor) -> Tensor:
    return F.relu(x)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    return F.softmax(x, dim=axis)


def conv2d(X: Tensor, W: Tensor, b: Tensor | None, padding: int = 0) -> Tensor:
    return F.conv2d(X, W, b, padding=padding)


def avg_pool2d(X: Tensor, size: int) -> Tensor:
    return F.avg_pool2d(X, size)


def max_pool2d(X: Tensor, size: int) -> Tensor:
    return F.max_pool2d(X, size)


def embedding(ids: Tensor, W: Tensor) -> Tensor:
    return F.embedding(ids, W)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")
