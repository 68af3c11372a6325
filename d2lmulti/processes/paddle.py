"""paddle.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

Paddle's gloo waits in every send until the receiver is there, so a round's messages go
in turns (`plans.message_order`). It matches sends and receives by counting each rank's
calls in a group, which two ranks do alike and three do not. So in larger groups every
two ranks have a group of their own. Chapter: *many_machines*.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.base import core

from ..backends import checks
from ..backends import paddle as B
from ..backends.protocol import Tensor, element_count
from ..comm.checks import check_native
from ..comm.group import Combine, Work
from ..errors import InvalidInput
from ..plans.message_order import RankMessages
from ..plans.rounds import Round, even_bounds
from .monitor import MonitoredEngine, Parts, of_some
from .paddle_store import StoreServer, complete_environment, meet, wait_for_listener
from .process_info import ProcessInfo, rendezvous_address, rendezvous_file

_LOOPBACK = "127.0.0.1:"
# Its gloo sums float16 wrongly, and of bool it adds the bytes.
_SUMMED = ("float32", "float64", "bfloat16", "int64", "int32", "int8", "uint8")
MOST = 8  # ranks with messages over gloo: 28 pairs, made in 0.3 s each


def joined() -> tuple[int, int] | None:
    """Give rank and size of the process group that the user has made, if there is."""
    if not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


class PaddleDistributed(MonitoredEngine):
    """The engine of one rank; nccl is used where every rank has a GPU of its own."""

    name = "paddle"
    native = frozenset({"allreduce", "allgather", "broadcast", "reduce_scatter"})
    reducible: Collection[str] | None = _SUMMED

    def __init__(self, info: ProcessInfo) -> None:
        super().__init__(info)
        self._server: StoreServer | None = None
        self._adopted = dist.is_initialized()  # then it is the user's, who ends it
        self.gpu: int | None = None  # that no other rank uses
        if self._adopted:
            if dist.get_backend().lower() != "gloo":
                self.gpu = dist.ParallelEnv().device_id
        else:
            if not {"PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS"} & {*os.environ}:
                rendezvous_address()  # what is missing is named before anybody waits
            with self._monitor.waiting():
                self._join(info)
        self._device = "cpu" if self.gpu is None else f"gpu:{self.gpu}"
        B.native(self._device)  # makes it the current GPU, on which Paddle computes
        if self._device != "cpu":
            self.reducible = (*_SUMMED, "float16")  # nccl's sums are right
        self.point_to_point = self._device != "cpu" or info.size <= MOST
        self._pairs: dict[int, Any] = {}  # peer -> the group of it and this rank
        if self._device == "cpu" and 2 < info.size <= MOST:
            self._make_pairs()

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's share of the rounds, in place, if it has messages."""
        if not self.point_to_point:
            raise InvalidInput(
                "expected algorithm='native' on the engine paddle, got a plan of "
                f"messages in a group of {self.size}; over gloo it has messages among "
                f"at most {MOST} ranks. Plans, layer and model parallelism run on the "
                "engine shared_memory"
            )
        super().exchange(data, rounds, combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin one of the collectives named in `native`; two are done at once."""
        check_native(self, what)
        x = data[0].detach()
        if what == "allgather":
            rows = [self._join_rows(x)]
            return Work(lambda: rows)
        if what == "reduce_scatter":
            part = self._reduce_scatter(x, op)
            return Work(lambda: [part])
        checks.contiguous(x.is_contiguous())
        if not element_count(x):  # gloo fails on those
            return Work()
        y = x if B.device_of(x) == self._device else B.copy_to(x, self._device)
        y = y if what == "allreduce" else _known(y)
        with self._monitor.waiting():
            if what == "allreduce":
                how = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
                work = dist.all_reduce(y, how, self._group, sync_op=False)
            else:
                source = self.ranks[root]
                work = dist.broadcast(y, source, self._group, sync_op=False)

        def end() -> None:
            with self._monitor.waiting():
                work.wait()
            if not y._is_shared_buffer_with(x):
                B.write_(x, 0, x.size, y.view(x.dtype))

        return Work(end)

    def part(self, parts: Parts, names: Sequence[str]) -> PaddleDistributed:
        """Make sub-groups of these ranks; give that of this rank, or the whole."""
        mine = self
        for ranks, name in zip(parts, names, strict=True):
            there = len(ranks) == 2 and self._pairs  # two ranks have one already
            peer = sum(ranks) - self.rank
            group = self._pairs.get(peer) if there else self._make_group(ranks)
            if self.rank in ranks:
                mine = of_some(self, ranks, name, group)
        return mine

    def close(self) -> None:
        """Leave the process group, unless it is the user's own."""
        if self._adopted:
            for group in self._pairs.values():
                dist.destroy_process_group(group)
            return
        dist.destroy_process_group()
        if self._server:
            self._server.close()

    def _join(self, info: ProcessInfo) -> None:
        complete_environment(info)
        usual = core.create_or_get_global_tcp_store
        if file := rendezvous_file():
            seconds = max(1, int(self._monitor.timeout))
            self._server, port = meet(file, info.rank, seconds)
            store = core.TCPStore(_LOOPBACK[:-1], port, False, info.size, seconds)
            core.create_or_get_global_tcp_store = lambda: store
        elif info.rank and os.environ.get("PADDLE_MASTER", "").startswith(_LOOPBACK):
            wait_for_listener(int(os.environ["PADDLE_MASTER"].rpartition(":")[2]))
        try:
            self.gpu = _gpu_of_its_own(info)
            if self.gpu is None:
                os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
            else:
                os.environ["FLAGS_selected_gpus"] = str(self.gpu)
            with contextlib.redirect_stderr(io.StringIO()):
                dist.init_parallel_env()  # writes which flags differ from defaults
        finally:
            core.create_or_get_global_tcp_store = usual

    def _make_pairs(self) -> None:
        for pair in combinations(range(self.size), 2):
            group = self._make_group(pair)
            if self.rank in pair:
                self._pairs[sum(pair) - self.rank] = group

    def _make_group(self, ranks: Sequence[int]) -> Any:
        """Make a group of Paddle's own; every rank makes every one."""
        with self._monitor.waiting():
            group = dist.new_group([*ranks], "gloo" if self._device == "cpu" else None)
            dist.barrier()  # Paddle's own store mixes up two that come about at once
        return group

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        found: list[Tensor] = []
        with self._monitor.waiting():
            dist.all_gather(found, B.array(values, self._device), self._group)
        return [B.numpy(x) for x in found]

    def _reduce_scatter(self, x: Tensor, op: Combine) -> Tensor:
        whole = B.copy_to(x, B.device_of(x))
        self.start("allreduce", [whole], op).wait()
        bounds = even_bounds(whole.size, len(self.ranks))
        part = bounds[self.ranks.index(self.rank)]
        return B.copy_to(B.read(whole, *part), B.device_of(x))

    def _join_rows(self, x: Tensor) -> Tensor:
        """Pad all to the most rows that a rank has, gather, and cut the padding off."""
        rows = [int(count[0]) for count in self._gather(np.array([len(x)]))]
        dtype, row = B.dtype_of(x), tuple(x.shape[1:])
        whole = B.zeros((sum(rows), *row), dtype, B.device_of(x))
        if element_count(whole):
            size = element_count(whole) // sum(rows)
            padded = B.zeros((max(rows) * size,), dtype, self._device)
            B.write_(padded, 0, element_count(x), x)
            parts: list[Tensor] = []
            with self._monitor.waiting():
                dist.all_gather(parts, _known(padded), self._group)
            for i, (part, count) in enumerate(zip(parts, rows, strict=True)):
                first, length = sum(rows[:i]) * size, count * size
                B.write_(whole, first, first + length, part.view(dtype)[:length])
        return whole

    def _carry(self, x: Tensor, share: RankMessages, combine: Combine) -> None:
        if B.device_of(x) == self._device:
            self._take_turns(x, share, combine)
        else:  # the engine sends from there only
            moved = B.copy_to(x, self._device)
            self._take_turns(moved, share, combine)
            B.write_(x, 0, moved.size, moved)

    def _take_turns(self, x: Tensor, share: RankMessages, combine: Combine) -> None:
        """Send and receive in the order of the turns, then add in that of the rows."""
        kept = {m: B.copy_to(B.read(x, m.first, m.last), self._device)
                for m in share.sends if m.clashes}  # fmt: skip
        aside = {}
        for m in sorted((*share.sends, *share.receives), key=lambda m: m.turn):
            if m in share.sends:
                part = kept.get(m)
                part = B.read(x, m.first, m.last) if part is None else part
                dist.send(_known(part), m.peer, self._pairs.get(m.peer))
                continue
            part = _known(B.read(x, m.first, m.last))
            if m.add or m.clashes or not part._is_shared_buffer_with(x):
                part = aside[m] = paddle.empty_like(part)
            dist.recv(part, m.peer, self._pairs.get(m.peer))
        for m in sorted(aside):  # additions in the order of their sources
            part = aside[m].view(x.dtype)
            if m.add and combine == "max":
                B.maximum_(x, m.first, m.last, part)
            else:
                B.write_(x, m.first, m.last, part, add=m.add)


def _gpu_of_its_own(info: ProcessInfo) -> int | None:
    """Number the GPU that this rank alone uses; None if not every rank has such a one.

    NCCL refuses two ranks on one GPU. They would have one where two launchers on one
    machine choose the same, so all ranks compare machine and GPU.
    """
    gpu = B.own_gpu(info.local_rank, info.local_size)
    if not paddle.device.cuda.device_count():
        return None
    own = "none"
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        own = f"{socket.gethostname()} {visible.split(',')[gpu] if visible else gpu}"
    store = core.create_or_get_global_tcp_store()
    store.set(f"gpu of rank {info.rank}", own)
    names = {bytes(store.get(f"gpu of rank {rank}")) for rank in range(info.size)}
    return gpu if len(names - {b"none"}) == info.size else None


connect = PaddleDistributed


def _known(x: Tensor) -> Tensor:
    """Give `x`, or the bytes of a copy: gloo ends the process for some dtypes."""
    if B.dtype_of(x) not in ("int16", "complex64", "complex128"):
        return x
    # A copy, because bytes of a part may end up at another place than the part.
    return B.copy_to(B.read(x, 0, element_count(x)), B.device_of(x)).view("uint8")


def peer_step(
    forward: Callable[..., Any], params: Sequence[Tensor], X: Tensor, y: Tensor,
    lr: float, n: int,
) -> Callable[[], None]:  # fmt: skip
    """Make a step of Paddle's own DataParallel and SGD on this rank's part."""

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weights = paddle.nn.ParameterList(
                [
                    paddle.create_parameter(
                        p.shape, B.dtype_of(p),
                        default_initializer=paddle.nn.initializer.Assign(B.numpy(p)),
                    )
                    for p in params
                ]
            )  # fmt: skip

        def forward(self, X: Tensor) -> Tensor:
            return forward(list(self.weights), X)

    with contextlib.redirect_stderr(io.StringIO()):
        net = paddle.DataParallel(Net())
    optimizer = paddle.optimizer.SGD(lr, parameters=net.parameters())
    scale = dist.get_world_size() / n  # DataParallel takes the mean over the ranks

    def step() -> None:
        optimizer.clear_grad()
        (B.cross_entropy(net(X), y).sum() * scale).backward()
        optimizer.step()

    return step
