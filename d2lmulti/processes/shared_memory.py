"""Processes of one machine that send tensors through shared memory.

Every pair of ranks has a channel in each direction, a ring of cells in one file that
all of them map: one process fills cells and the other empties them. They synchronize by
two semaphores, which count the free and the full cells. Tensors of all backends are
supported; those on a GPU are copied through the host. Source: Dijkstra,
Cooperating sequential processes (1965). Chapter: *many_machines*.

The semaphores are POSIX's, from the standard library's multiprocessing. There they can
only be passed to a child process; here both ends derive their names. On every
processor, data written before a post is visible after the matching acquire; plain
counters in shared memory guarantee that on x86 only.
"""

from __future__ import annotations

import mmap
import os
import time
import zlib
from _multiprocessing import SemLock, sem_unlink  # type: ignore[import-not-found]
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.common import COMBINE
from ..checks import check_contiguous, check_native
from ..comm.group import Combine, Work, cached_plan
from ..comm.mesh import renumber
from ..errors import InvalidInput
from ..plans.message_order import RankMessages, messages_of
from ..plans.rounds import Round
from .engine import Parts, ProcessEngine, StatusTable
from .process_group import ProcessInfo, rendezvous_file

LINE = 64  # bytes: every part is aligned to cache lines
CELLS, CELL = 4, 1 << 18
SPACE = CELLS * (LINE + CELL)
_COUNTING, _MAX = 1, 2**30  # the kind of a semaphore; 0 would be a lock
# With as many ranks as cores, a rank that spins takes processor time from the rank that
# it waits for. So it tries a few times, then yields, then sleeps, and then reads the
# status table.
_TRIES, _YIELDS, _SHORT_NAPS = 50, 200, 40
_NAP, _LONG_NAP = 5e-5, 5e-4  # seconds
_READ_EVERY = 100  # long naps
_SETTLE = 1.0  # seconds until the other ranks have recorded what they wait for
_SHORT = 2**18  # bytes up to which a star is faster than a ring
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
Transfer = Iterator[int | None]  # moves a message; yields the rank it waits for, if any


class Channel:
    """One end of a ring in `memory` of SPACE bytes; `name` is shared by both ends."""

    def __init__(self, memory: np.ndarray, name: str) -> None:
        self.free, self.full = semaphore(f"{name}a", CELLS), semaphore(f"{name}b", 0)
        self._cells = _forever(memory.reshape(CELLS, LINE + CELL))

    def next_cell(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next cell: its header of integers, and its bytes."""
        return next(self._cells)


def _forever(cells: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    views = [(cell[:LINE].view(np.int64), cell[LINE:]) for cell in cells]
    while True:
        yield from views


def semaphore_name(file: Path) -> str:
    """Return the prefix of the semaphores' names, from a file of the launch."""
    word = file.parent.name.rpartition("-")[2]
    return f"/d2l-{word}-{file.name.rpartition(' ')[2]}-"


def semaphore(name: str, value: int) -> SemLock:
    """Open one of the two ends of a semaphore with the initial `value`.

    The first process creates it; the second removes its name, so that it is freed when
    both processes have ended.
    """
    try:
        return SemLock(_COUNTING, value, _MAX, name, False)
    except FileExistsError:
        opened = SemLock._rebuild(0, _COUNTING, _MAX, name)
        sem_unlink(name)
        return opened


def map_file(path: Path, size: int) -> np.ndarray:
    """Map a file of `size` bytes, initially zeros, into memory."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # no effect the second time
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


def connect(info: ProcessInfo) -> SharedMemory:
    """Join the group of the launch that started this process."""
    table, file = StatusTable.of_this_process(), rendezvous_file()
    if table is None or file is None:
        raise InvalidInput(
            "expected to share memory with processes that d2lmulti.processes.launch "
            "has started, got another launcher; choose the engine of that launcher"
        )
    return SharedMemory(info, table, file)


class SharedMemory(ProcessEngine):
    """The engine of one rank; the ranks share the memory of a file."""

    name = "shared_memory"
    point_to_point = True
    native = frozenset({"allreduce"})
    reducible: Collection[str] | None = None

    def __init__(self, info: ProcessInfo, table: StatusTable, file: Path) -> None:
        super().__init__(info)
        self._status, self._code = table, 0
        size, rank, name = info.size, info.rank, semaphore_name(file)
        rings = map_file(file, size**2 * SPACE).reshape(size, size, SPACE)
        self._to = [Channel(rings[rank, r], f"{name}{rank}c{r}") for r in range(size)]
        self._from = [Channel(rings[r, rank], f"{name}{r}c{rank}") for r in range(size)]

    def begin(self, call: str) -> None:
        """Record the next call, whose checksum is in the header of every message."""
        self._status.begin(call, self._label)
        if call != self._call:
            self._call, self._code = call, zlib.crc32((self._label + call).encode())

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        with on_host(data[0]) as memory:
            for this_round in rounds:
                self._run_round(memory, messages_of(this_round, self.rank), combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Execute an all-reduce in place: a star, or a ring for long vectors."""
        check_native(self, what)
        with on_host(data[0]) as memory:
            name = "star" if memory.nbytes <= _SHORT else "ring"
            for local_round in cached_plan(name, len(self.ranks), memory.size):
                this_round = renumber(local_round, tuple(self.ranks))
                self._run_round(memory, messages_of(this_round, self.rank), op)
        return Work()

    def part(self, parts: Parts, names: Sequence[str]) -> SharedMemory:
        for ranks, name in zip(parts, names, strict=True):
            if self.rank in ranks:
                return self._of_some(ranks, name)
        return self

    def close(self) -> None:
        """Do nothing: the memory is freed with the processes and the folder."""

    def _run_round(
        self, memory: np.ndarray, messages: RankMessages, combine: Combine
    ) -> None:
        """Move all messages concurrently, but combine received values in row order."""
        sends: dict[int, list[Transfer]] = {}
        receives: list[Transfer] = []
        for m in messages.sends:
            part = memory[m.first : m.last]
            if m.clashes:
                part = part.copy()  # the values before the round are sent
            sends.setdefault(m.peer, []).append(self._send(m.peer, part))
        for m in messages.receives:
            part = memory[m.first : m.last]
            receives.append(
                self._receive(m.peer, part, COMBINE[combine] if m.add else None)
            )
        self._move([*map(chain.from_iterable, sends.values()), chain(*receives)])

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        gathered = {rank: np.empty_like(values) for rank in self.ranks}
        gathered[self.rank] = values
        peers = [rank for rank in self.ranks if rank != self.rank]
        sends = [self._send(rank, values) for rank in peers]
        self._move([*sends, *(self._receive(r, gathered[r], None) for r in peers)])
        return [gathered[rank] for rank in self.ranks]

    def _send(self, peer: int, part: np.ndarray) -> Transfer:
        """Fill cells; each header has the length of the message, and its call."""
        channel, data, code = self._to[peer], part.view(np.uint8), self._code
        for first in range(0, max(1, data.size), CELL):
            while not channel.free.acquire(False):
                yield peer
            head, body = channel.next_cell()
            head[0], head[1] = data.size, code
            piece = data[first : first + CELL]
            body[: piece.size] = piece
            channel.full.release()
            yield None

    def _receive(
        self, peer: int, part: np.ndarray, combine: Callable[..., None] | None
    ) -> Transfer:
        """Empty cells: overwrite the part, or combine."""
        channel, code, length = self._from[peer], self._code, CELL // part.itemsize
        for first in range(0, max(1, part.size), length):
            while not channel.full.acquire(False):
                yield peer
            head, body = channel.next_cell()
            if head[0] != part.nbytes or head[1] != code:
                raise self._different_calls(self._status)
            piece = part[first : first + length]
            values = body[: piece.nbytes].view(part.dtype)
            if combine is None:
                piece[:] = values
            else:
                combine(piece, values, out=piece)
            channel.free.release()
            yield None

    def _move(self, transfers: list[Transfer]) -> None:
        """Advance all transfers in turn until they have finished."""
        tries = 0
        ended: set[int] = set()
        while transfers:
            awaited: list[int] = []
            unfinished = []
            for transfer in transfers:
                peer = next(transfer, self.rank)  # its own rank: it has finished
                if peer != self.rank:
                    unfinished.append(transfer)
                if peer is not None and peer != self.rank:
                    awaited.append(peer)
            tries = tries + 1 if len(awaited) == len(transfers) else 0
            transfers, naps = unfinished, tries - _TRIES - _YIELDS
            if naps >= 0:
                time.sleep(_NAP if naps < _SHORT_NAPS else _LONG_NAP)
                if naps % _READ_EVERY == _SHORT_NAPS:
                    ended = self._read_table(awaited, ended)
            elif tries > _TRIES:
                _yield()
        self._status.wait_for()

    def _read_table(self, awaited: list[int], ended_before: set[int]) -> set[int]:
        """Record the awaited ranks; return those that have ended by now.

        Raises `PeerError` if ranks make different calls, or if an awaited rank had
        ended before the last try (it is in `ended_before`).
        """
        table = self._status
        table.wait_for(*awaited)
        other = self._differing(table)
        ended = {rank for rank in awaited if table.read(rank).ended}
        if other is None and not ended & ended_before:
            return ended
        until = time.monotonic() + _SETTLE  # then the error shows the call of each rank
        while other is not None and time.monotonic() < until:
            row = table.read(other)
            if row.ended or row.waits_for:
                break
            time.sleep(_LONG_NAP)
        raise self._different_calls(table)


@contextmanager
def on_host(x: Any) -> Iterator[np.ndarray]:
    """Yield a flat view of a tensor's memory; of one on a GPU, a copy to write back.

    Raises `InvalidInput` for a strided view.
    """
    B = backend_of(x)
    on_cpu = B.device_of(x) == "cpu"
    host = x if on_cpu else B.copy_to(x, "cpu")
    memory: Any = backend_of(host).memory(host)
    check_contiguous(memory is not None)
    yield memory
    if not on_cpu:
        B.write_(x, 0, len(memory), host)
