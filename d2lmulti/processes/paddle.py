"""paddle.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

Paddle's gloo blocks in every send until the receiver is ready, so a round's messages
are ordered in turns (`plans.message_order`). It matches sends and receives by counting
each rank's calls in a group, which is consistent for two ranks, but not for three. So
each pair of ranks has a group of its own.

The rendezvous of a group is a store, a server of rank 0. Groups must not share a store:
each rank publishes its address under its rank number alone, so an early reader could
get an address of the previous group. So each group has a store of its own. Paddle's
server listens on all interfaces and accepts all clients; under `launch`, on Linux, it
is bound to the loopback interface. Chapter: *many_machines*.
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

# Its gloo sums float16 incorrectly, and sums the bytes of bool.
_SUMMED = ("float32", "float64", "bfloat16", "int64", "int32", "uint8")
_numbers = count(2**16)  # of groups; Paddle's own numbers are small


class PaddleDistributed(ProcessEngine):
    """The engine of one rank; nccl is used where every rank has a GPU of its own."""

    name = "paddle"
    point_to_point = True
    native = frozenset({"allreduce", "broadcast"})
    reducible: Collection[str] | None = _SUMMED

    def __init__(self, info: ProcessInfo) -> None:
        super().__init__(info)
        self._adopted = dist.is_initialized()  # then the user destroys it
        self.gpu: int | None = None  # used by this rank only
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
            self.reducible = (*_SUMMED, "float16")  # nccl sums it correctly
        self._pairs: dict[int, Any] = {}  # peer -> its group with this rank
        if self._device == "cpu":
            pairs = [*combinations(range(self.size), 2)]
            self._pairs = {sum(r) - self.rank: g for r, g in self._connect_all(pairs)}

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
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
        named, engine = dict(zip(map(tuple, parts), names, strict=True)), self
        for ranks, group in self._connect_all(parts):
            engine = self._of_some(ranks, named[tuple(ranks)], group)
        return engine

    def close(self) -> None:
        if not self._adopted:
            dist.destroy_process_group()

    def _open_store(self, address: str, port: int, serve: bool) -> core.TCPStore:
        """Connect to a store, which this rank or another one serves."""
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
                dist.init_parallel_env()  # prints the flags that differ from defaults
        finally:
            core.create_or_get_global_tcp_store = usual

    def _connect_all(self, parts: Parts) -> list[tuple[Sequence[int], Any]]:
        """Create Paddle's groups of these ranks; return those with this rank."""
        connected = []
        for ranks in parts:
            number = next(_numbers)  # the same on all ranks, in the group or not
            if self.rank in ranks:
                with self._waiting(*(rank for rank in ranks if rank != self.rank)):
                    connected.append((ranks, self._connect(ranks, number)))
        dist.barrier()  # until then rank 0 must serve the store
        return connected

    def _connect(self, ranks: Sequence[int], number: int) -> Any:
        key, place = f"store of group {number}", ranks.index(self.rank)
        if not place:
            address, port = self._host, free_port()
            store = self._open_store(address, port, True)
            self._store.set(key, f"{address} {port}")
        else:
            address, text = bytes(self._store.get(key)).decode().split()
            store = self._open_store(address, int(text), False)
        backend = "gloo" if self._device == "cpu" else "nccl"
        return collective._new_process_group_impl(
            backend, store, place, len(ranks), key, None, number
        )

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        x = B.array(values, self._device)
        gathered = [paddle.empty_like(x) for _ in self.ranks]
        with self._waiting():
            self._group.all_gather(gathered, x, True).wait()
        return [B.numpy(y) for y in gathered]

    def _run_round(self, x: Tensor, messages: RankMessages, combine: Combine) -> None:
        if B.device_of(x) == self._device:
            self._take_turns(x, messages, combine)
        else:  # the engine sends from there only
            moved = B.copy_to(x, self._device)
            self._take_turns(moved, messages, combine)
            B.write_(x, 0, moved.size, moved)

    def _take_turns(self, x: Tensor, messages: RankMessages, combine: Combine) -> None:
        """Send and receive in the order of the turns, then add in row order."""
        copies = {
            m: B.copy_to(B.read(x, m.first, m.last), self._device)
            for m in messages.sends
            if m.clashes
        }
        received = {}
        for m in sorted((*messages.sends, *messages.receives), key=lambda m: m.turn):
            group, peer = self._whole, m.peer
            if self._pairs:
                group, peer = self._pairs[m.peer], int(m.peer > self.rank)
            if m in messages.sends:
                part = copies[m] if m.clashes else B.read(x, m.first, m.last)
                group.send(part, peer, True).wait()
                continue
            part = B.read(x, m.first, m.last)
            if m.add or m.clashes or not part._is_shared_buffer_with(x):
                part = received[m] = paddle.empty_like(part)
            group.recv(part, peer, True).wait()
        for m in sorted(received):  # additions in the order of their sources
            part = received[m]
            if m.add and combine == "max":
                B.maximum_(x, m.first, m.last, part)
            else:
                B.write_(x, m.first, m.last, part, add=m.add)


def gpu_of_its_own(info: ProcessInfo, store: core.TCPStore) -> int | None:
    """Return the GPU of this rank alone; None unless every rank has its own."""
    visible, gpu, gpu_uuid = paddle.device.cuda.device_count(), None, ""
    if visible:
        gpu = B.own_gpu(info.local_rank, info.local_size)
        gpu = info.local_rank % visible if gpu is None else gpu
        gpu_uuid = gpu_id(gpu)
    return gpu if all_differ(info, store, gpu_uuid) else None


def gpu_id(gpu: int) -> str:
    """Return the driver's unique id of a visible GPU, which Paddle lacks.

    Raises `RuntimeError` where the driver does not answer.
    """
    driver, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
    device = ctypes.c_int()
    if (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), gpu)
        or driver.cuDeviceGetUuid(uuid, device)
    ):
        raise RuntimeError(f"the CUDA driver does not know gpu:{gpu}")
    return uuid.raw.hex()


def _rendezvous() -> tuple[str, int]:
    """Return where rank 0 serves the store, from Paddle's or other variables."""
    master = os.environ.get("PADDLE_MASTER") or os.environ.get(
        "PADDLE_TRAINER_ENDPOINTS", ""
    )
    if not master or "MASTER_ADDR" in os.environ:
        return rendezvous_address()  # raises, before any rank waits, if it is missing
    address, _, port = master.partition(",")[0].rpartition(":")
    return address, int(port)


def _complete_environment(info: ProcessInfo) -> None:
    """Set Paddle's variables from those of another launcher."""
    words = {
        "PADDLE_TRAINER_ID": str(info.rank),
        "PADDLE_TRAINERS_NUM": str(info.size),
        "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{info.rank}",  # must only be set
    }
    if "MASTER_ADDR" in os.environ:
        words["PADDLE_MASTER"] = ":".join(map(str, rendezvous_address()))
    for name, value in words.items():
        os.environ.setdefault(name, value)


def _bind_to_loopback(port: int) -> None:
    """Bind this process's server on a port to the loopback interface."""
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
