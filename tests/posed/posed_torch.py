"""PyTorch's CPU poses as GPUs.

A posed tensor holds a tensor of the CPU and says that it lies on `cuda:1`. An operation
is carried out on what its arguments hold, and its result lies where they lie; two
places in one operation are refused, as on GPUs. For PyTorch's own core all of them lie
on the kind of device that it keeps for others (`PrivateUse1`): so gradients come on a
thread of their own, as a GPU's do. `posed_nccl` poses as NCCL. Speed and streams are
not posed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import posed_nccl
import torch
from torch.utils.backend_registration import (
    _DummyDeviceGuard,
    _setup_privateuseone_for_python_backend,
)

NAME, MEMORY = "Posed GPU", 80 * 2**30
CPU = torch.device("cpu")
aten = torch.ops.aten
FROM_ANYWHERE = (  # a copy, and an index, which may lie on the CPU
    aten.copy_, aten._to_copy, aten.index, aten.index_put_, aten._index_put_impl_,
)  # fmt: skip
LIBRARY = torch.library.Library("aten", "IMPL")  # lives as long as this module


class Event:
    """An event of a queue that is always empty."""

    def __init__(self, enable_timing: bool = False) -> None: ...

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


# A wrong index into these ends all CUDA work of a process.
LOOKUPS = (aten.embedding, aten.nll_loss_forward, aten.gather, aten.index)
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)."


class Machine:
    """What `torch.cuda` knows and remembers."""

    count = 0
    current = 0
    ids: list[str] = []  # of the GPUs that CUDA_VISIBLE_DEVICES names
    touched: set[int] = set()  # GPUs on which this process has a context
    old_driver = False  # NVML counts the GPUs, but CUDA does not start
    dead = False  # after a wrong index
    share: dict[int, float] = {}  # of a GPU's memory, for this process


class PosedTensor(torch.Tensor):
    """A tensor of the CPU that says it lies on a GPU."""

    held: torch.Tensor
    gpu: int

    @staticmethod
    def __new__(cls, held: torch.Tensor, gpu: int) -> PosedTensor:
        x = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="posed:0",  # PyTorch lets such a backend have one device
        )
        x.held, x.gpu = held, gpu
        return x

    device = property(lambda x: torch.device("cuda", x.gpu))
    is_cuda = property(lambda x: True)
    get_device = property(lambda x: lambda: x.gpu)
    data_ptr = property(lambda x: x.held.data_ptr)

    def __matmul__(self, y: torch.Tensor) -> torch.Tensor:
        if self.dim() == 1 and y.dim() == 2:  # PyTorch would squeeze in place, unseen
            return (self.unsqueeze(0) @ y).squeeze(0)
        return super().__matmul__(y)

    tolist = property(lambda x: x.held.tolist)

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use "
            "Tensor.cpu() to copy the tensor to host memory first."
        )

    __array__ = numpy

    def __repr__(self, **_: Any) -> str:
        values, comma, form = f"{self.held!r}"[:-1].partition(", dtype=")
        words = f"{values}, device='{self.device}'{comma}{form}"
        if self.grad_fn is not None:
            return f"{words}, grad_fn=<{type(self.grad_fn).__name__}>)"
        return words + ", requires_grad=True" * self.requires_grad + ")"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return carry_out(operation, args, kwargs or {})


def place(device: Any) -> torch.device:
    """Read a device: `cuda` alone is the current one; refuse one that is not there."""
    if isinstance(device, int):
        device = torch.device("cuda", device)
    device = torch.device("cuda" if device is None else device)
    if device.type != "cuda":
        return device
    gpu = Machine.current if device.index is None else device.index
    if Machine.old_driver:
        raise RuntimeError(OLD_DRIVER)
    if Machine.dead:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    if gpu >= Machine.count:
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return torch.device("cuda", gpu)


def touch(device: Any = None) -> int:
    """Make a context on a GPU, as most calls do, and give its number."""
    gpu = place(device).index
    Machine.touched.add(gpu)
    return gpu


def every(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all that lists, tuples and dicts hold."""
    if isinstance(value, list | tuple):
        return type(value)([every(function, v) for v in value])
    if isinstance(value, dict):
        return {k: every(function, v) for k, v in value.items()}
    return function(value)


def carry_out(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Carry out an operation on what posed tensors hold; pose its results."""
    places: list[torch.device] = []
    posed: dict[int, PosedTensor] = {}

    def held(x: Any) -> Any:
        if isinstance(x, PosedTensor):
            places.append(x.device)
            posed[id(x.held)] = x
            return x.held
        if isinstance(x, torch.Tensor) and x.dim():  # a number may lie anywhere
            places.append(x.device)
        return CPU if isinstance(x, torch.device) else x

    inner = every(held, [list(args), kwargs])
    there = kwargs.get("device")
    if there is not None and there.type in ("cpu", "cuda"):
        there = place(there)
    elif operation.overloadpacket in FROM_ANYWHERE or len(set(places)) == 1:
        there = places[0]
    else:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two "
            f"devices, {' and '.join(sorted(map(str, set(places))))}!"
        )

    def pose(y: Any) -> Any:
        if not isinstance(y, torch.Tensor):
            return y
        if id(y) in posed:  # changed in place, or given as `out`
            return posed[id(y)]
        return PosedTensor(y, there.index) if there.type == "cuda" else y

    if there.type == "cuda":
        touch(there)
        posed_nccl.check(operation, there.index)
        if operation.overloadpacket is aten.sqrt:  # MKL's is one bit off, a GPU's not
            return pose(torch.from_numpy(np.asarray(np.sqrt(inner[0][0].numpy()))))
    try:
        return every(pose, operation(*inner[0], **inner[1]))
    except (IndexError, RuntimeError) as error:
        if there.type == "cpu" or operation.overloadpacket not in LOOKUPS:
            raise
        Machine.dead = True
        raise torch.AcceleratorError(
            "CUDA error: device-side assert triggered"
        ) from error


def allocate(
    make: Callable[..., torch.Tensor],
    size: Any,
    *sizes: Any,
    dtype: Any = None,
    device: Any = None,
    memory_format: Any = None,
    **_: Any,
) -> PosedTensor:
    """Make a posed tensor, if it fits into the share of memory."""
    gpu = touch(device)
    dtype = dtype or torch.get_default_dtype()
    wanted = torch.Size(size).numel() * dtype.itemsize
    most = MEMORY * Machine.share.get(gpu, 1.0)
    if wanted > most:
        raise torch.cuda.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {wanted / 2**30:.2f} GiB. GPU "
            f"{gpu} has a total capacity of {MEMORY / 2**30:.2f} GiB, of which "
            f"{most / 2**30:.2f} GiB allowed."
        )
    more = {} if memory_format is None else {"memory_format": memory_format}
    return PosedTensor(make(size, *sizes, dtype=dtype, **more), gpu)


def convert(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do what `x.to(...)` does, which is nothing where x lies there already."""

    def read(value: Any) -> Any:
        named = isinstance(value, str | torch.device) or type(value) is int
        return place(value) if named else value

    if args and isinstance(args[0], torch.Tensor):
        args = (args[0].device, args[0].dtype, *args[1:])
    args, kwargs = every(read, args), every(read, kwargs)
    if isinstance(x, PosedTensor) and not kwargs.get("copy"):
        plain = {k: v for k, v in kwargs.items() if k != "copy"}
        device, dtype, _, form = torch._C._nn._parse_to(*args, **plain)
        if device in (None, x.device) and dtype in (None, x.dtype) and form is None:
            return x
    return NATIVE_TO(x, *args, **kwargs)


NATIVE_TO = torch.Tensor.to


def create(
    make: Callable[..., torch.Tensor], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Call `torch.tensor` with a device that has a number."""
    if kwargs.get("device") is not None:
        kwargs["device"] = place(kwargs["device"])
    return make(*args, **kwargs)


def properties(device: Any = None) -> SimpleNamespace:
    gpu = place(device).index
    return SimpleNamespace(
        name=NAME, total_memory=MEMORY, major=9, minor=0, multi_processor_count=132,
        uuid=f"posed-{Machine.ids[gpu]}",
    )  # fmt: skip


def see(count: int) -> None:
    """Count `count` GPUs, or those of them that are visible."""
    Machine.ids = [*map(str, range(count))]
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        Machine.ids = [i for i in visible.split(",") if i in Machine.ids]
    Machine.count = len(Machine.ids)


def put_on(count: int) -> None:
    """Let PyTorch find `count` GPUs, or those of them that are visible."""
    see(count)
    _setup_privateuseone_for_python_backend("posed", device_guard=_DummyDeviceGuard())
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor copies to its device last
    for key in ("CUDA", "PrivateUse1"):
        for name, make in (
            ("empty.memory_format", torch.empty),
            ("empty_strided", torch.empty_strided),
        ):
            LIBRARY.impl(name, lambda *a, m=make, **k: allocate(m, *a, **k), key)
    PosedTensor.__module__, PosedTensor.__qualname__ = "torch", "Tensor"
    torch.tensor = partial(create, torch.tensor)
    torch.as_tensor = partial(create, torch.as_tensor)
    torch.Tensor.to = convert
    torch.Tensor.cuda = lambda x, device=None, **options: x.to(place(device), **options)
    torch.Tensor.pin_memory = lambda x, device=None: x.clone()
    cuda = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_available = lambda: Machine.count > 0 and not Machine.old_driver
    cuda.device_count = lambda: Machine.count
    cuda.current_device = lambda: Machine.current
    cuda.set_device = lambda device: setattr(Machine, "current", touch(device))
    cuda.get_device_properties = properties
    cuda.get_device_name = lambda device=None: properties(device).name
    cuda.mem_get_info = lambda device=None: (MEMORY - 2**30, MEMORY)
    cuda.set_per_process_memory_fraction = lambda share, device=None: (
        Machine.share.update({place(device).index: share})
    )
    cuda.synchronize = lambda device=None: touch(device) and None
    cuda.Event = Event
    cuda.can_device_access_peer = lambda device, peer: True
    cuda.get_device_capability = lambda device=None: (
        properties(device).major,
        properties(device).minor,
    )
    cuda.get_arch_list = lambda: ["sm_80", "sm_90"]
    cuda.nccl.version = lambda: (2, 28, 3)
    torch._C._cuda_hasPrimaryContext = lambda gpu: gpu in Machine.touched
    posed_nccl.put_on(Machine)
    # torch.compile saves them and puts them back; posed GPUs draw none of their own.
    cuda.get_rng_state = lambda device="cuda": torch.empty(0, dtype=torch.uint8)
    cuda.set_rng_state = lambda state, device="cuda": None
