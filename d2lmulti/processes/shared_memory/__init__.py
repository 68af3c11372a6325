"""Processes of one machine that pass tensors through shared memory.

Every pair of ranks has a ring in one file that all of them have mapped (see
`channel.py`). Tensors of any backend, on the CPU; what lies on a GPU goes by way of
the host. Chapter: *many_machines*.
"""

from __future__ import annotations

import copy
import mmap
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...backends import backend_of
from ...backends.common import COMBINE
from ...checks import check_native
from ...comm.group import Combine, Work
from ...errors import InvalidInput
from ...plans.message_order import messages_of
from ...plans.rounds import Round
from ..private_folder import semaphore_name
from ..process_info import ProcessInfo, rendezvous_file
from ..status_table import StatusTable
from . import staging
from .backoff import Backoff
from .channel import SPACE, Channel, OtherMessage, Receiving, Sending


def connect(info: ProcessInfo) -> SharedMemory:
    """Join the group whose status table this process was given."""
    table, file = StatusTable.mine(), rendezvous_file()
    if table is None or file is None:
        raise InvalidInput(
            "expected to share memory with processes that d2lmulti.processes.launch "
            "has started, got another launcher; choose the engine of that launcher"
        )
    return SharedMemory(info, table, file)


class SharedMemory:
    """The engine of one rank; the ranks share the memory of a file."""

    name = "shared_memory"
    point_to_point = True
    native = frozenset({"allreduce"})
    reducible: Collection[str] | None = None

    def __init__(self, info: ProcessInfo, table: StatusTable, file: Path) -> None:
        self.rank, self.size = info.rank, info.size
        self.ranks: Sequence[int] = range(info.size)  # of this group, in the whole
        self._name = ""  # of a sub-group, in errors
        self._table, self._backoff = table, Backoff(table)
        size, rank = info.size, info.rank
        rings, posts = np.split(
            _map(file, size**2 * SPACE + staging.space(size)), [size**2 * SPACE]
        )
        name = semaphore_name(file)
        self._buffers = staging.StagingBuffers(
            posts, name, rank, self.ranks, self._backoff
        )
        rings = rings.reshape(size, size, SPACE)
        self._to = [Channel(rings[rank, r], f"{name}{rank}c{r}") for r in range(size)]
        self._from = [Channel(rings[r, rank], f"{name}{r}c{rank}") for r in range(size)]
        self._call, self._code = "", 0

    def begin(self, call: str) -> None:
        """Note the next call on the status table; its code goes with every message."""
        self._table.begin(call, self._name)
        if call != self._call:
            self._call, self._code = call, zlib.crc32((self._name + call).encode())

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's share of the rounds, in place."""
        with on_host(data[0]) as memory:
            for this_round in rounds:
                self._exchange(memory, this_round, combine)

    def _exchange(
        self, memory: np.ndarray, this_round: Round, combine: Combine
    ) -> None:
        sends: dict[int, list[Sending]] = {}
        receives: list[tuple[int, Receiving]] = []
        share = messages_of(this_round, self.rank)
        for m in share.sends:
            part = memory[m.first : m.last]
            if m.clashes:
                part = part.copy()  # it must leave as it was before the round
            sending = Sending(self._to[m.peer], part, self._code)
            sends.setdefault(m.peer, []).append(sending)
        for m in share.receives:
            part = memory[m.first : m.last]
            how = COMBINE[combine] if m.add else None
            receiving = Receiving(self._from[m.peer], part, self._code, how)
            receives.append((m.peer, receiving))
        self._move(sends, receives)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Sum (or take the maximum) in rank order through the slots, in place."""
        check_native(self, what)
        with on_host(data[0]) as memory:
            self._buffers.allreduce(memory, COMBINE[op], self._code)
        return Work()

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order."""
        texts = []
        self.begin("allgather_text")
        for others in self.ranks:
            message = text.encode() if others == self.rank else b""
            length = np.array([len(message)])
            self._broadcast(length, others)
            body = np.frombuffer(message, np.uint8).copy()
            if others != self.rank:
                body = np.zeros(int(length[0]), np.uint8)
            self._broadcast(body, others)
            texts.append(body.tobytes().decode())
        return texts

    def part(
        self, parts: Sequence[Sequence[int]], names: Sequence[str]
    ) -> SharedMemory:
        """Make sub-groups of these ranks; give that of this rank, or the whole.

        Messages go through the rings of the whole; slots are the sub-group's own.
        """
        file, mine = rendezvous_file(), self
        for number, (ranks, name) in enumerate(zip(parts, names, strict=True)):
            if self.rank not in ranks or file is None:
                continue
            slots = _map(
                file.with_name(f"{file.name}p{number}"), staging.space(len(ranks))
            )
            mine = copy.copy(self)
            mine.ranks, mine._name = ranks, name
            mine._buffers = staging.StagingBuffers(
                slots, f"{semaphore_name(file)}p{number}-", self.rank, ranks,
                self._backoff,
            )  # fmt: skip
        return mine

    def close(self) -> None:
        """Do nothing: the memory goes with the processes and the folder."""

    def _broadcast(self, values: np.ndarray, root: int) -> None:
        others = [rank for rank in self.ranks if rank != self.rank]
        if self.rank == root:
            to = self._to
            self._move({r: [Sending(to[r], values, self._code)] for r in others}, [])
        else:
            coming = Receiving(self._from[root], values, self._code, None)
            self._move({}, [(root, coming)])

    def _move(
        self, sends: dict[int, list[Sending]], receives: list[tuple[int, Receiving]]
    ) -> None:
        """Move all, in any order of targets, but combine in the order of the rows."""
        queues = {rank: list(reversed(queue)) for rank, queue in sends.items()}
        receives = list(reversed(receives))
        backoff = self._backoff
        while queues or receives:
            moved = False
            for rank, queue in list(queues.items()):
                moved |= queue[-1].step()
                if queue[-1].done:
                    queue.pop()
                    if not queue:
                        del queues[rank]
            if receives:
                source, receiving = receives[-1]
                try:
                    moved |= receiving.step()
                except OtherMessage as error:
                    raise backoff.deadlock() from error
                if receiving.done:
                    receives.pop()
            if moved:
                backoff.reset()
            elif queues or receives:
                backoff.wait(*{*queues, *(source for source, _ in receives[-1:])})
        backoff.reset()


def _map(path: Path, size: int) -> np.ndarray:
    """Map a file of `size` bytes, all zeros at first, into this process's memory."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # changes nothing the second time
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


@contextmanager
def on_host(x: Any) -> Iterator[np.ndarray]:
    """View the memory of a tensor, flat; of one on a GPU a copy, then written back."""
    B = backend_of(x)
    here = B.device_of(x) == "cpu"
    host = x if here else B.copy_to(x, "cpu")
    memory = view(host)
    yield memory
    if not here:
        B.write_(x, 0, len(memory), host)


def view(x: Any) -> np.ndarray:
    """View the memory of a CPU tensor, flat; raise `InvalidInput` for another one."""
    memory = backend_of(x).memory(x)
    if memory is None:
        raise InvalidInput(
            "expected a tensor that lies row by row in the CPU's memory, got one on "
            f"{backend_of(x).device_of(x)}, or a strided view; copy it with "
            "B.copy_to(x, 'cpu')"
        )
    return memory
