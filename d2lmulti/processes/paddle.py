"""paddle.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

Paddle's gloo waits in every send until the receiver is there, so a round's messages go
in turns (`plans.message_order`). It matches sends and receives by counting each rank's
calls in a group, which two ranks do alike and three do not. So every two ranks that
exchange messages have a group of their own.

The ranks of a group find each other through a store, a server of rank 0. Two groups in
one store mix up: each rank tells its address under its number alone, and who asks too
early gets that of the group before. So each group has a store of its own. Paddle's
server listens on all interfaces and serves whoever connects; under `launch`, on Linux,
it is bound to the loopback interface. Chapter: *many_machines*.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import socket
from collections.abc import Collection, Sequence
from itertools import combinations, count
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import collective

from ..backends import element_count
from ..backends import paddle as B
from ..backends.protocol import Tensor
from ..checks import check_contiguous, check_native
from ..comm.group import Combine, Work
from ..plans.message_order import RankMessages
from .engine import Parts, ProcessEngine, all_differ, wait_for_server
from .process_group import ProcessInfo, launched_here, rendezvous_address
from .spawn import free_port, loopback

# Its gloo sums float16 wrongly, and of bool it adds the bytes.
_SUMMED = ("float32", "float64", "bfloat16", "int64", "int32", "uint8")
_numbers = count(2**16)  # of groups; those that Paddle gives are small


def joined() -> tuple[int, int] | None:
    """Return rank and size of the process group that the user has made, if any."""
    if not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


class PaddleDistributed(ProcessEngine):
    """The engine of one rank; nccl is used where every rank has a GPU of its own."""

    name = "paddle"
    point_to_point = True
    native = frozenset({"allreduce", "broadcast"})
    reducible: Collection[str] | None = _SUMMED

    def __init__(self, info: ProcessInfo) -> None:
        super().__init__(info)
        self._adopted = dist.is_initialized()  # then it is the user's, who ends it
        self.gpu: int | None = None  # that no other rank uses
        self._seconds = max(1, int(self.timeout))
        address, port = _rendezvous()
        with self._waiting():
            if self._adopted:
                self._store = collective._default_store
                if dist.get_backend().lower() != "gloo":
                    self.gpu = dist.ParallelEnv().device_id
            else:
                self._store = self._open_store(address, port, not self.rank)
                self._join(info)
            self._host = wait_for_server(address, port)
        self._whole = self._group = collective._get_default_group().process_group
        self._device = "cpu" if self.gpu is None else f"gpu:{self.gpu}"
        B.native(self._device)  # makes it the current GPU, on which Paddle computes
        if self._device != "cpu":
            self.reducible = (*_SUMMED, "float16")  # nccl's sums are right
        self._pairs: dict[int, Any] = {}  # peer -> the group of it and this rank
        if self._device == "cpu":
            pairs = [*combinations(range(self.size), 2)]
            self._pairs = {sum(r) - self.rank: g for r, g in self._connect_all(pairs)}

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin one of the collectives named in `native`, in place."""
        check_native(self, what)
        x = data[0].detach()
        check_contiguous(x.is_contiguous())
        if not element_count(x):  # gloo fails on those
            return Work()
        y = x if B.device_of(x) == self._device else B.copy_to(x, self._device)
        with self._waiting():
            if what == "allreduce":
                how = core.ReduceOp.MAX if op == "max" else core.ReduceOp.SUM
                work = self._group.all_reduce(y, how, False)
            else:
                work = self._group.broadcast(y, root, False)

        def end() -> None:
            with self._waiting():
                work.wait()
            if not y._is_shared_buffer_with(x):
                B.write_(x, 0, x.size, y)

        return Work(end)

    def part(self, parts: Parts, names: Sequence[str]) -> PaddleDistributed:
        """Make sub-groups of these ranks; return that of this rank, or the whole."""
        named, engine = dict(zip(map(tuple, parts), names, strict=True)), self
        for ranks, group in self._connect_all(parts):
            engine = self._of_some(ranks, named[tuple(ranks)], group)
        return engine

    def close(self) -> None:
        """Leave the process group, unless it is the user's own."""
        if not self._adopted:
            dist.destroy_process_group()

    def _open_store(self, address: str, port: int, serve: bool) -> core.TCPStore:
        """Connect to a store, which this rank serves, or another one."""
        if not serve:
            wait_for_server(address, port)
        store = core.TCPStore(address, port, serve, 0, self._seconds)
        if serve and launched_here():
            _bind_to_loopback(port)
        return store

    def _join(self, info: ProcessInfo) -> None:
        usual = core.create_or_get_global_tcp_store
        core.create_or_get_global_tcp_store = lambda: self._store
        try:
            self.gpu = gpu_of_its_own(info, self._store)
            if self.gpu is None:
                os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
            else:
                os.environ["FLAGS_selected_gpus"] = str(self.gpu)
            _complete_environment(info)
            with contextlib.redirect_stderr(io.StringIO()):
                dist.init_parallel_env()  # writes which flags differ from defaults
        finally:
            core.create_or_get_global_tcp_store = usual

    def _connect_all(self, parts: Parts) -> list[tuple[Sequence[int], Any]]:
        """Make Paddle's own groups of some ranks; return those of this rank."""
        found = []
        for ranks in parts:
            number = next(_numbers)  # the same on all ranks, in the group or not
            if self.rank in ranks:
                with self._waiting(*(rank for rank in ranks if rank != self.rank)):
                    found.append((ranks, self._connect(ranks, number)))
        dist.barrier()  # until then rank 0 must live: it serves the store
        return found

    def _connect(self, ranks: Sequence[int], number: int) -> Any:
        key, at = f"store of group {number}", ranks.index(self.rank)
        if not at:
            address, port = self._host, free_port()
            store = self._open_store(address, port, True)
            self._store.set(key, f"{address} {port}")
        else:
            address, text = bytes(self._store.get(key)).decode().split()
            store = self._open_store(address, int(text), False)
        backend = "gloo" if self._device == "cpu" else "nccl"
        return collective._new_process_group_impl(
            backend, store, at, len(ranks), key, None, number
        )

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        x = B.array(values, self._device)
        gathered = [paddle.empty_like(x) for _ in self.ranks]
        with self._waiting():
            self._group.all_gather(gathered, x, True).wait()
        return [B.numpy(y) for y in gathered]

    def _carry(self, x: Tensor, messages: RankMessages, combine: Combine) -> None:
        if B.device_of(x) == self._device:
            self._take_turns(x, messages, combine)
        else:  # the engine sends from there only
            moved = B.copy_to(x, self._device)
            self._take_turns(moved, messages, combine)
            B.write_(x, 0, moved.size, moved)

    def _take_turns(self, x: Tensor, messages: RankMessages, combine: Combine) -> None:
        """Send and receive in the order of the turns, then add in that of the rows."""
        kept = {
            m: B.copy_to(B.read(x, m.first, m.last), self._device)
            for m in messages.sends
            if m.clashes
        }
        aside = {}
        for m in sorted((*messages.sends, *messages.receives), key=lambda m: m.turn):
            group, there = self._whole, m.peer
            if self._pairs:
                group, there = self._pairs[m.peer], int(m.peer > self.rank)
            if m in messages.sends:
                part = kept[m] if m.clashes else B.read(x, m.first, m.last)
                group.send(part, there, True).wait()
                continue
            part = B.read(x, m.first, m.last)
            if m.add or m.clashes or not part._is_shared_buffer_with(x):
                part = aside[m] = paddle.empty_like(part)
            group.recv(part, there, True).wait()
        for m in sorted(aside):  # additions in the order of their sources
            part = aside[m]
            if m.add and combine == "max":
                B.maximum_(x, m.first, m.last, part)
            else:
                B.write_(x, m.first, m.last, part, add=m.add)


def gpu_of_its_own(info: ProcessInfo, store: core.TCPStore) -> int | None:
    """Return the GPU that this rank alone uses; None if not every rank has such one."""
    visible, gpu, own = paddle.device.cuda.device_count(), None, ""
    if visible:
        gpu = B.own_gpu(info.local_rank, info.local_size)
        gpu = info.local_rank % visible if gpu is None else gpu
        own = gpu_id(gpu)
    return gpu if all_differ(info, store, own) else None


def gpu_id(gpu: int) -> str:
    """Ask the driver for the unique id of a visible GPU, which Paddle does not tell.

    Raises `RuntimeError` where the driver does not answer.
    """
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
    device = ctypes.c_int()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), gpu)
        or driver.cuDeviceGetUuid(found, device)
    ):
        raise RuntimeError(f"the CUDA driver does not know gpu:{gpu}")
    return found.raw.hex()


def _rendezvous() -> tuple[str, int]:
    """Read where rank 0 serves the store, in Paddle's words or in others'."""
    master = os.environ.get("PADDLE_MASTER") or os.environ.get(
        "PADDLE_TRAINER_ENDPOINTS", ""
    )
    if not master or "MASTER_ADDR" in os.environ:
        return rendezvous_address()  # what is missing is named before anybody waits
    address, _, port = master.partition(",")[0].rpartition(":")
    return address, int(port)


def _complete_environment(info: ProcessInfo) -> None:
    """Say in Paddle's words what another launcher said in its own."""
    words = {
        "PADDLE_TRAINER_ID": str(info.rank),
        "PADDLE_TRAINERS_NUM": str(info.size),
        "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{info.rank}",  # only has to be there
    }
    if "MASTER_ADDR" in os.environ:
        words["PADDLE_MASTER"] = ":".join(map(str, rendezvous_address()))
    for name, value in words.items():
        os.environ.setdefault(name, value)


def _bind_to_loopback(port: int) -> None:
    """Let no other machine reach this process's server on a port."""
    for file in Path("/dev/fd").iterdir():
        if not file.is_socket():
            continue
        with socket.socket(fileno=os.dup(int(file.name))) as listener:
            if listener.getsockname()[1:2] != (port,):
                continue
            interface = loopback().encode()
            try:
                option = socket.SO_BINDTODEVICE
                listener.setsockopt(socket.SOL_SOCKET, option, interface)
            except (AttributeError, OSError) as error:  # another system, an old kernel
                words = "other machines can reach Paddle's store on port %d: %s"
                logging.getLogger(__name__).warning(words, port, error)


connect = PaddleDistributed
