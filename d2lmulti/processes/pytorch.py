"""torch.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

All messages of a round are concurrent. Values to be written are received in place;
values to be added, in a buffer. Under `launch` the rendezvous is a file in the private
folder of the launch, and gloo listens on the loopback address, so other machines cannot
connect. Chapter: *many_machines*.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..backends import DTYPES
from ..backends import pytorch as B
from ..backends.protocol import Tensor
from ..checks import check_contiguous, check_native
from ..comm.group import Combine, Work
from ..plans.message_order import RankMessages
from .engine import Parts, ProcessEngine, all_differ
from .process_group import (
    ProcessInfo,
    launched_here,
    rendezvous_address,
    rendezvous_file,
)


class TorchDistributed(ProcessEngine):
    """The engine of one rank; nccl is used where every rank has a GPU of its own."""

    name = "torch"
    point_to_point = True
    native = frozenset({"allreduce", "broadcast"})
    reducible: Collection[str] | None = tuple(
        name
        for name in DTYPES
        if name != "bool"  # gloo would sum the bytes
    )

    def __init__(self, info: ProcessInfo) -> None:
        super().__init__(info)
        self._adopted = dist.is_initialized()  # then the user destroys it
        self.gpu: int | None = None  # used by this rank only
        if self._adopted:
            self.gpu = _gpu_of_users_group(info)
        else:
            if not launched_here():
                rendezvous_address()  # raises, before any rank waits, if it is missing
            with self._waiting():
                self._join(info)
        engines = dist.get_backend_config()  # such as cpu:gloo,cuda:nccl
        self.nccl = "nccl" in engines
        self._device = "cpu" if "cpu:" in engines else f"cuda:{self.gpu}"
        if self.gpu is not None:
            torch.cuda.set_device(self.gpu)

    def _join(self, info: ProcessInfo) -> None:
        timeout = timedelta(seconds=self.timeout)
        if file := rendezvous_file():
            store = dist.FileStore(str(file), info.size)
        else:
            meet = dist.rendezvous("env://", info.rank, info.size, timeout=timeout)
            store, *_ = next(iter(meet))
            # torchrun keeps its store, with the addresses of the failed group, when it
            # restarts a group.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"attempt {attempt}", store)
        self.gpu = _gpu_of_its_own(info, store)
        nccl = self.gpu is not None and dist.is_nccl_available()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            rank=info.rank,
            world_size=info.size,
            timeout=timeout,
            store=store,
            # Then NCCL connects all ranks now. Otherwise it connects in the first call,
            # which fails or hangs if that is a message between some ranks only.
            device_id=torch.device("cuda", self.gpu) if nccl else None,
        )

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        check_native(self, what)
        x = data[0].detach()
        check_contiguous(x.is_contiguous())
        if what == "allreduce":
            how = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
            work = dist.all_reduce(x, how, group=self._group, async_op=True)
        else:
            flat = x.view(-1).view(torch.uint8)  # bytes: every dtype works
            source = self.ranks[root]
            work = dist.broadcast(flat, source, group=self._group, async_op=True)

        def end() -> None:
            with self._waiting():
                work.wait()

        return Work(end)

    def part(self, parts: Parts, names: Sequence[str]) -> TorchDistributed:
        """Make sub-groups of these ranks; return that of this rank, or this engine."""
        engine = self
        for ranks, name in zip(parts, names, strict=True):
            with self._waiting():
                group = dist.new_group(list(ranks))  # by all ranks, also others
            if self.rank in ranks:
                engine = self._of_some(ranks, name, group)
        return engine

    def close(self) -> None:
        if not self._adopted:
            dist.destroy_process_group()

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        x = torch.tensor(values, device=self._device)
        gathered = [torch.empty_like(x) for _ in self.ranks]
        with self._waiting():
            dist.all_gather(gathered, x, group=self._group)
        return [y.cpu().numpy() for y in gathered]

    def _run_round(self, x: Tensor, messages: RankMessages, combine: Combine) -> None:
        if x.is_cuda and not self.nccl:  # gloo sends from the CPU only
            host = x.cpu()
            self._run_round(host, messages, combine)
            x.copy_(host)
            return
        flat, calls, arriving = x.view(-1), [], {}
        # In row order on every rank, as nccl requires.
        for m in sorted((*messages.sends, *messages.receives)):
            part, verb = flat[m.first : m.last], dist.irecv
            if m in messages.sends:
                part, verb = part.clone() if m.clashes else part, dist.isend
            elif m.add or m.clashes:
                part = arriving[m] = torch.empty_like(part)
            tag = 0 if x.is_cuda else m.row
            calls.append(dist.P2POp(verb, part.view(torch.uint8), m.peer, tag=tag))
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        for m, part in arriving.items():
            target = flat[m.first : m.last]
            if not m.add:
                target.copy_(part)
            elif combine == "max":
                torch.maximum(target, part, out=target)
            else:
                target.add_(part)


def _gpu_of_its_own(info: ProcessInfo, store: dist.Store) -> int | None:
    """Return the GPU of this rank alone; None unless every rank has its own."""
    count, gpu, gpu_uuid = B.gpu_count(), 0, ""
    if count:
        gpu = info.local_rank % count
        gpu_uuid = str(torch.cuda.get_device_properties(gpu).uuid)
    return gpu if all_differ(info, store, gpu_uuid) else None


def _gpu_of_users_group(info: ProcessInfo) -> int | None:
    """Return the GPU of the user's process group; None without NCCL."""
    count = B.gpu_count()
    if "nccl" not in dist.get_backend_config() or not count:
        return info.local_rank if count >= info.local_size else None
    bound = dist.group.WORLD.bound_device_id
    return bound.index if bound else info.local_rank % count


connect = TorchDistributed
