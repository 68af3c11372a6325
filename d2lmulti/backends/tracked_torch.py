"""PyTorch tensors that know their simulated device: `sim:1` is `torch.device("cpu:1")`.

PyTorch accepts a numbered CPU and forgets the number. Two modes remember it, on the
storage, so that views share it: one sees what a program calls, the other all that
PyTorch computes, also in the backward pass. Values and dtypes are PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tracking import caller, one_device, report_copy

aten = torch.ops.aten
CPU = torch.device("cpu")
INDEXING = (aten.index, aten.index_put_, aten._index_put_impl_)  # by ids of the host


def where(x: Tensor) -> torch.device:
    """Return the device of x, a numbered CPU for a simulated one."""
    if x.device.type != "cpu" or not torch._C._has_storage(x):
        return x.device
    return getattr(x.untyped_storage(), "simulated", x.device)


def place(x: Any, device: torch.device) -> Any:
    """Note that x, and all that shares its storage, is on a simulated device."""
    if isinstance(x, Tensor) and x.device.type == "cpu" and torch._C._has_storage(x):
        x.untyped_storage().simulated = device
    return x


def name(device: torch.device) -> str:
    return "cpu" if device.index is None else f"sim:{device.index}"


def copy(x: Tensor, device: torch.device, form: Any = torch.preserve_format) -> Tensor:
    report_copy(name(where(x)), name(device), x.numel(), x.element_size())
    return place(x.clone(memory_format=form), device)


class Copy(torch.autograd.Function):
    """A copy to another simulated device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: torch.device, form: Any) -> Tensor:
        ctx.source = where(x)
        return copy(x, device, form)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return copy(dy, ctx.source), None, None


def convert(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Do what `x.to(...)` does: nothing, if x is on that device already."""
    if args and isinstance(args[0], Tensor):  # x.to(other)
        args = (where(args[0]), args[0].dtype, *args[1:])
    anew = kwargs.pop("copy", False)
    device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
    if device is not None and device.type != "cpu":
        return x.to(*args, copy=anew, **kwargs)
    form = torch.preserve_format if form is None else form
    if device is not None and device != where(x):
        x, anew = Copy.apply(x, device, form), False
    return x.to(dtype or x.dtype, copy=anew, memory_format=form)


class Calls(TorchFunctionMode):
    """What a program calls: the functions that name a device, or leave PyTorch."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function == Tensor.device.__get__:
            return where(args[0])
        if function is Tensor.to:
            return convert(*args, **kwargs)
        if function is Tensor.cpu:
            return convert(args[0], "cpu", **kwargs)
        if function is Tensor.copy_ and where(args[0]) != where(args[1]):
            args = (args[0], convert(args[1], where(args[0])), *args[2:])
        if function in (Tensor.numpy, Tensor.__array__) and not kwargs.get("force"):
            device = name(where(args[0]))
            if device != "cpu" and not caller().startswith("d2lmulti."):
                raise TypeError(
                    f"can't convert {device} device type tensor to numpy. Use "
                    "Tensor.cpu() to copy the tensor to host memory first."
                )
        result = function(*args, **kwargs)
        if kwargs.get("device") is not None:
            place(result, torch.device(kwargs["device"]))
        return result


class Operations(TorchDispatchMode):
    """What PyTorch computes: with inputs of one device, on which the result is, too."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        packet = operation.overloadpacket
        if packet is aten.copy_:  # also x[...] = y
            ends = name(where(args[1])), name(where(args[0]))
            report_copy(*ends, args[0].numel(), args[1].element_size())
        if packet is aten.copy_ or packet in INDEXING:
            inputs = inputs[:1]
        inputs = [x for x in inputs if x.dim() or where(x) != CPU]  # any host's number
        places = {name(where(x)): where(x) for x in inputs}
        device = one_device(places)
        result = operation(*args, **(kwargs or {}))
        if device != "cpu":
            for y in tree_leaves(result):
                place(y, places[device])
        return result


@contextmanager
def hooks() -> Iterator[None]:
    """Watch all that this thread asks of PyTorch."""
    with Operations(), Calls():
        yield
