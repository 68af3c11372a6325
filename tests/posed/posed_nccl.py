"""Gloo poses as NCCL between processes, and refuses what NCCL refuses.

That is: tensors of the CPU, or on another GPU than the group's; two ranks on one GPU;
and messages between some ranks as a group's first call, unless the group was made with
`device_id`: NCCL would wait for all ranks.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class Nccl:
    """The process group of this process, if it is to be NCCL's."""

    machine: Any = None
    config = ""  # such as cpu:gloo,cuda:nccl
    gpu = -1
    bound: torch.device | None = None
    connected = False  # all ranks


def check(operation: Any, gpu: int) -> None:
    """Refuse a tensor on another GPU than the group's."""
    if operation.namespace != "c10d" or not Nccl.config:
        return
    if gpu != Nccl.gpu:
        raise dist.DistBackendError(f"NCCL error: cuda:{gpu} in a group of {Nccl.gpu}")
    if operation.__name__.startswith(("send", "recv")) and not Nccl.connected:
        raise dist.DistBackendError("NCCL hangs: messages before all ranks connect")
    Nccl.connected = True


def refuse_cpu(call: Any) -> Any:
    """Refuse tensors of the CPU where gloo was not asked for too."""

    def checked(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        values = tensors if isinstance(tensors, list) else [tensors]
        on_cpu = any(not x.is_cuda for x in values if isinstance(x, torch.Tensor))
        if Nccl.config and "cpu:" not in Nccl.config and on_cpu:
            raise RuntimeError("No backend type associated with device type cpu")
        return call(tensors, *args, **kwargs)

    return checked


def init(backend: Any = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
    """Make a group of gloo; with `nccl` in the name of the backend, pose as NCCL."""
    if "nccl" not in (backend or ""):
        return INIT(backend, *args, **kwargs)
    INIT("gloo", *args, **kwargs)
    Nccl.gpu = Nccl.machine.current if device_id is None else device_id.index
    visible = Nccl.machine.ids[Nccl.gpu]
    own, users = (socket.gethostname(), visible), [None] * dist.get_world_size()
    dist.all_gather_object(users, own)
    if users.count(own) > 1:
        raise dist.DistBackendError(f"NCCL error: Duplicate GPU detected: {users}")
    both = "cpu:" in backend
    Nccl.config = "cpu:gloo,cuda:nccl" if both else "cuda:nccl"
    Nccl.connected, Nccl.bound = device_id is not None, device_id
    return None


INIT = dist.init_process_group
CONFIG = dist.get_backend_config


def put_on(machine: Any) -> None:
    """Let `torch.distributed` find NCCL, unless D2LMULTI_POSED_NCCL=0."""
    if not machine.count or os.environ.get("D2LMULTI_POSED_NCCL") == "0":
        return
    Nccl.machine = machine
    dist.ProcessGroup.bound_device_id = property(lambda group: Nccl.bound)
    for module in (dist, c10d):
        module.is_nccl_available = lambda: True
        module.init_process_group = init
        module.get_backend_config = lambda *a: Nccl.config or CONFIG(*a)
        for name in ("all_reduce", "broadcast", "all_gather"):
            setattr(module, name, refuse_cpu(getattr(c10d, name)))
