"""torch.distributed as an engine: gloo for CPU tensors, nccl for GPUs.

Sends and receives of a round are all under way at once. What is to be written arrives
straight in its place; what is to be added arrives in segments, each of which is added
while the next one comes. Chapter: *many_machines*.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..backends import pytorch as B
from ..backends.common import DTYPES
from ..backends.protocol import Tensor
from ..checks import check_contiguous, check_native
from ..comm.group import Combine, Work
from ..plans.message_order import Message, RankMessages, messages_of
from ..plans.rounds import Round
from .monitor import MonitoredEngine, Parts, of_some
from .process_info import (
    ProcessInfo,
    launched_here,
    rendezvous_address,
    rendezvous_file,
)

SEGMENT = 2**22  # bytes that are received and added at a time
GREETING = timedelta(seconds=20)
APART = 2**20  # added to the tags of rounds that are under way beside others
AHEAD = 2  # segments that may arrive before they are added


def joined() -> tuple[int, int] | None:
    """Give rank and size of the process group that the user has made, if there is."""
    if not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


class TorchDistributed(MonitoredEngine):
    """The engine of one rank; nccl is used where every rank has a GPU of its own."""

    name = "torch"
    point_to_point = True
    native = frozenset({"allreduce", "broadcast"})
    reducible: Collection[str] | None = tuple(
        name
        for name in DTYPES
        if name != "bool"  # gloo would add the bytes
    )

    def __init__(self, info: ProcessInfo) -> None:
        super().__init__(info)
        self._adopted = dist.is_initialized()  # then it is the user's, who ends it
        self.gpu: int | None = None  # that no other rank uses
        if self._adopted:
            self.gpu = _gpu_of_users_group(info)
        else:
            if not launched_here():
                rendezvous_address()  # what is missing is named before anybody waits
            with self._monitor.waiting():
                self._join(info)
        engines = dist.get_backend_config()  # such as cpu:gloo,cuda:nccl
        self.nccl = "nccl" in engines
        self._device = "cpu" if "cpu:" in engines else f"cuda:{self.gpu}"
        if self.gpu is not None:
            torch.cuda.set_device(self.gpu)
        self._scratch: dict[tuple[torch.dtype, int], list[Tensor]] = {}

    def _join(self, info: ProcessInfo) -> None:
        timeout = timedelta(seconds=self._monitor.timeout)
        if file := rendezvous_file():  # one machine: no port, where strangers connect
            store = dist.FileStore(str(file), info.size)
        else:
            meet = dist.rendezvous("env://", info.rank, info.size, timeout=timeout)
            store, *_ = next(iter(meet))
            # torchrun keeps its store when it starts a group again, and in it the
            # addresses of the group that died.
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
            # NCCL then connects all ranks now. Otherwise it would in the first call,
            # which fails or hangs if that is a message between some ranks only.
            device_id=torch.device("cuda", self.gpu) if nccl else None,
        )
        if file:
            self._greet(file)

    def _greet(self, file: Path) -> None:
        """Exchange a word that only this launch knows with every other rank.

        Gloo takes any connection for that of a rank. Here one of a stranger, who came
        first, is an error instead of a hang. All have just connected, so none is late.
        """
        word = np.frombuffer(file.with_name("word").read_bytes(), np.uint8)
        mine = torch.tensor(word)
        others = [rank for rank in range(self.size) if rank != self.rank]
        heard = {rank: torch.empty_like(mine) for rank in others}
        work = [dist.irecv(theirs, rank) for rank, theirs in heard.items()]
        work += [dist.isend(mine, rank) for rank in others]
        for one in work:
            one.wait(GREETING)
        for rank, theirs in heard.items():
            if not torch.equal(mine, theirs):
                raise RuntimeError(f"a stranger has connected as rank {rank}")

    def start_round(self, data: Sequence[Any], this_round: Round) -> Work:
        """Begin a round's messages; they are under way until they are waited for."""
        x, share = data[0].detach(), messages_of(this_round, self.rank)
        if x.is_cuda or any(m.clashes for m in (*share.sends, *share.receives)):
            self.exchange(data, [this_round])
            return Work()
        check_contiguous(x.is_contiguous())
        flat, arriving = x.view(-1), []
        for m in share.receives:
            part = flat[m.first : m.last]
            piece = torch.empty_like(part) if m.add else part
            work = dist.irecv(piece, m.peer, tag=APART + m.row)
            arriving.append((part, piece, work))
        leaving = [
            dist.isend(flat[m.first : m.last], m.peer, tag=APART + m.row)
            for m in share.sends
        ]

        def end() -> None:
            with self._monitor.waiting(*share.peers), torch.no_grad():
                for work in (*(work for _, _, work in arriving), *leaving):
                    work.wait()
                for part, piece, _ in arriving:
                    if piece is not part:
                        part.add_(piece)

        return Work(end)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin one of the collectives named in `native`, in place."""
        check_native(self, what)
        x = data[0].detach()
        check_contiguous(x.is_contiguous())
        if what == "allreduce":
            how = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
            work = dist.all_reduce(x, how, group=self._group, async_op=True)
        else:
            flat = x.view(-1).view(torch.uint8)  # bytes: any dtype will do
            source = self.ranks[root]
            work = dist.broadcast(flat, source, group=self._group, async_op=True)

        def end() -> None:
            with self._monitor.waiting():
                work.wait()

        return Work(end)

    def part(self, parts: Parts, names: Sequence[str]) -> TorchDistributed:
        """Make sub-groups; give that of this rank, or the whole."""
        mine = self
        for ranks, name in zip(parts, names, strict=True):
            with self._monitor.waiting():
                group = dist.new_group(list(ranks))  # by all, also those not in it
            if self.rank in ranks:
                mine = of_some(self, ranks, name, group)
        return mine

    def close(self) -> None:
        """Leave the process group, unless it is the user's own."""
        if not self._adopted:
            dist.destroy_process_group()

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        x = torch.tensor(values, device=self._device)
        found = [torch.empty_like(x) for _ in self.ranks]
        with self._monitor.waiting():
            dist.all_gather(found, x, group=self._group)
        return [y.cpu().numpy() for y in found]

    def _carry(self, x: Tensor, share: RankMessages, combine: Combine) -> None:
        if x.is_cuda and self.nccl:
            self._batch(x.view(-1), share, combine)
        elif x.is_cuda:  # gloo sends from the CPU only
            host = x.cpu()
            self._stream(host.view(-1), share, combine)
            x.copy_(host)
        else:
            self._stream(x.view(-1), share, combine)

    def _stream(self, x: Tensor, share: RankMessages, combine: Combine) -> None:
        """All messages at once; sums in segments, so both ends cut them alike."""
        length = SEGMENT // x.element_size()
        leaving = [
            x[m.first : m.last].clone() if m.clashes else x[m.first : m.last]
            for m in share.sends  # before anything can arrive in their place
        ]
        work = []
        for m in share.receives:  # straight into its place
            if not m.add and not m.clashes:
                work.append(dist.irecv(x[m.first : m.last], m.peer, tag=m.row))
        for m, part in zip(share.sends, leaving, strict=True):
            for piece in part.split(length) if m.add else (part,):
                work.append(dist.isend(piece, m.peer, tag=m.row))
        for m in share.receives:
            part = x[m.first : m.last]
            if m.add:
                self._add(part.split(length), m, combine)
            elif m.clashes:
                arrived = torch.empty_like(part)
                dist.irecv(arrived, m.peer, tag=m.row).wait()
                part.copy_(arrived)
        for w in work:
            w.wait()

    def _add(self, parts: Sequence[Tensor], m: Message, combine: Combine) -> None:
        """Receive a few segments ahead, and add each while the next ones arrive."""
        key = parts[0].dtype, len(parts[0])
        if key not in self._scratch:
            self._scratch = {key: [torch.empty_like(parts[0]) for _ in range(AHEAD)]}
        arriving: list[tuple[Tensor, Any]] = []
        for i in range(len(parts) + AHEAD):
            if i >= AHEAD:
                segment, work = arriving[i - AHEAD]
                work.wait()
                _combine_(parts[i - AHEAD], segment, combine)
            if i < len(parts):
                segment = self._scratch[key][i % AHEAD][: len(parts[i])]
                arriving.append((segment, dist.irecv(segment, m.peer, tag=m.row)))

    def _batch(self, x: Tensor, share: RankMessages, combine: Combine) -> None:
        """All messages as one group of calls, in the order of the rows, as nccl needs.

        The GPU carries them out later, in the order in which they are called here.
        """
        calls, arrived = [], {}
        for m in sorted((*share.sends, *share.receives)):
            part = x[m.first : m.last]
            if m in share.sends:
                part = part.clone() if m.clashes else part
                calls.append(dist.P2POp(dist.isend, part.view(torch.uint8), m.peer))
            else:
                if m.add or m.clashes:
                    part = arrived[m] = torch.empty_like(part)
                calls.append(dist.P2POp(dist.irecv, part.view(torch.uint8), m.peer))
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        for m, part in arrived.items():
            if m.add:
                _combine_(x[m.first : m.last], part, combine)
            else:
                x[m.first : m.last].copy_(part)


def _gpu_of_its_own(info: ProcessInfo, store: dist.Store) -> int | None:
    """Number the GPU that this rank alone uses; None if not every rank has such a one.

    NCCL refuses two ranks on one GPU, so all ranks compare the GPUs' unique ids. The
    number of GPUs does not tell: a scheduler may show each rank one GPU of its own, and
    two launchers on one machine may choose the same.
    """
    count, gpu, own = B.gpu_count(), None, ""
    if count:
        gpu = info.local_rank % count
        own = str(torch.cuda.get_device_properties(gpu).uuid)
    store.set(f"gpu of rank {info.rank}", own)
    if not own:
        return None
    ids = {store.get(f"gpu of rank {rank}") for rank in range(info.size)}
    return gpu if len(ids - {b""}) == info.size else None


def _gpu_of_users_group(info: ProcessInfo) -> int | None:
    """Number the GPU on which the user's process group works; None without NCCL."""
    if "nccl" not in dist.get_backend_config() or not B.gpu_count():
        count = B.gpu_count()
        return info.local_rank if count >= info.local_size else None
    bound = dist.group.WORLD.bound_device_id
    return bound.index if bound else info.local_rank % B.gpu_count()


connect = TorchDistributed


def _combine_(x: Tensor, y: Tensor, combine: Combine) -> None:
    if combine == "max":
        torch.maximum(x, y, out=x)
    else:
        x.add_(y)
