"""PyTorch tensors with a simulated device: `sim:1` is `torch.device("cpu:1")`.

PyTorch accepts a numbered CPU and drops the number. Here it is stored with the storage,
so that views share it. Methods that name a device are replaced, and a dispatch mode
handles all operations, also in the backward pass. Values and dtypes are PyTorch's own.
Zeros that PyTorch makes for an undefined gradient are on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tracking import caller, one_device, report_copy

aten = torch.ops.aten
INDEXING = (aten.index, aten.index_put_, aten._index_put_impl_)
CPU = torch.device("cpu")
NATIVE_DEVICE = Tensor.device.__get__
NATIVE = {name: getattr(Tensor, name) for name in ("to", "copy_", "numpy", "__array__")}
NATIVE_MAKE = {"tensor": torch.tensor, "as_tensor": torch.as_tensor}


def where(x: Tensor) -> torch.device:
    """Return the device of x, a numbered CPU for a simulated one."""
    device = NATIVE_DEVICE(x)
    if device.type == "cpu" and torch._C._has_storage(x):
        return getattr(x.untyped_storage(), "simulated", device)
    return device if type(x).device is WHERE else x.device


WHERE = property(where)


def place(x: Any, device: torch.device) -> Any:
    """Record that x, and all views of its storage, are on a simulated device."""
    if isinstance(x, Tensor) and x.is_cpu and torch._C._has_storage(x):
        x.untyped_storage().simulated = device
    return x


def name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"gpu:{device.index}"
    return "cpu" if device.index is None else f"sim:{device.index}"


def copy(
    x: Tensor, device: torch.device, memory_format: Any = torch.preserve_format
) -> Tensor:
    report_copy(name(where(x)), name(device), x.numel(), x.element_size())
    if x.is_cpu and device.type == "cpu":
        return place(x.clone(memory_format=memory_format), device)
    return NATIVE["to"](x, device, memory_format=memory_format)


class Copy(torch.autograd.Function):
    """A copy to another device; its gradient is copied back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, device: torch.device, memory_format: Any
    ) -> Tensor:
        ctx.source = where(x)
        return copy(x, device, memory_format)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return copy(dy, ctx.source), None, None


# -- methods of a tensor that name a device, or leave PyTorch ----------------------


def to(x: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    """Do what `x.to(...)` does: nothing, if x is on that device already."""
    if args and isinstance(args[0], Tensor):  # x.to(other)
        args = (where(args[0]), args[0].dtype, *args[1:])
    device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    memory_format = torch.preserve_format if memory_format is None else memory_format
    if device is not None and device != where(x):
        x, copy = Copy.apply(x, device, memory_format), False
    return NATIVE["to"](x, dtype or x.dtype, copy=copy, memory_format=memory_format)


def cpu(x: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return to(x, CPU, memory_format=memory_format)


def copy_(x: Tensor, y: Tensor, non_blocking: bool = False) -> Tensor:
    if where(x) != where(y):  # otherwise the gradient would not be copied back
        y = Copy.apply(y, where(x), torch.preserve_format)
    return NATIVE["copy_"](x, y, non_blocking)


def numpy(x: Tensor, *, force: bool = False) -> Any:
    return NATIVE["numpy"](_of_host(x, force), force=force)


def array(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    return NATIVE["__array__"](_of_host(x), *args, **kwargs)


def _of_host(x: Tensor, force: bool = False) -> Tensor:
    device = name(where(x))
    if device.startswith("sim") and not force:
        if not caller(__name__).startswith("d2lmulti."):
            raise TypeError(
                f"can't convert {device} device type tensor to numpy. Use "
                "Tensor.cpu() to copy the tensor to host memory first."
            )
    return x


def tensor(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
    x = NATIVE_MAKE["tensor"](*args, device=device, **kwargs)
    return x if device is None else place(x, torch.device(device))


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    x = NATIVE_MAKE["as_tensor"](data, dtype=dtype)
    return x if device is None else to(x, device)


class Operations(TorchDispatchMode):
    """Checks that the inputs of operations are on one device, as the result is."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import it, which takes seconds

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        packet = operation.overloadpacket
        if packet is aten.copy_:  # also x[...] = y
            ends = name(where(args[1])), name(where(args[0]))
            report_copy(*ends, args[0].numel(), args[1].element_size())
            inputs = inputs[:1]
        elif packet in INDEXING:  # an index of the host fits tensors of any device
            inputs = [x for i, x in enumerate(inputs) if i == 0 or where(x) != CPU]
        places = {}
        for x in inputs:
            device = where(x)
            if x.dim() or device != CPU:  # a number may be on the host
                places[name(device)] = device
        device = places.get(one_device(places), CPU)
        requested = kwargs.get("device")  # by torch.zeros and the like
        if requested is not None and requested.index is not None:
            device = requested
        result = operation(*args, **kwargs)
        if device != CPU:
            for y in tree_leaves(result):
                place(y, device)
        return result


@contextmanager
def hooks() -> Iterator[None]:
    """Replace the methods, and track this thread unless there are several GPUs."""
    methods: dict[str, Any] = {"to": to, "cpu": cpu, "copy_": copy_, "device": WHERE}
    with (
        patch.multiple(Tensor, numpy=numpy, __array__=array, **methods),
        patch.multiple(torch, tensor=tensor, as_tensor=as_tensor),
        Operations() if torch.cuda.device_count() < 2 else nullcontext(),
    ):
        yield
