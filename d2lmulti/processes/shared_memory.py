"""Processes of one machine that pass tensors through shared memory.

Every pair of ranks has a channel each way, a ring of cells in one file that all of them
have mapped: one process fills cells and the other empties them. Two semaphores are all
the agreement they need: how many cells are free, and how many are full. Tensors of any
backend, on the CPU; what lies on a GPU goes by way of the host. Source: Dijkstra,
Cooperating sequential processes (1965). Chapter: *many_machines*.

The semaphores are POSIX's, as the standard library's multiprocessing has them; there
they can only be passed to a child process, here both ends know their names. What a
process has written before it posts is visible to the one who takes, on every processor;
plain counters in shared memory guarantee that on x86 alone.
"""

from __future__ import annotations

import mmap
import os
import time
import zlib
from _multiprocessing import SemLock, sem_unlink  # type: ignore[import-not-found]
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.common import COMBINE
from ..checks import check_native
from ..comm.group import Combine, Work
from ..comm.mesh import renumber
from ..errors import InvalidInput
from ..plans.allreduce import ALLREDUCE
from ..plans.message_order import RankMessages, messages_of
from ..plans.rounds import Round
from .engine import Parts, ProcessEngine, StatusTable
from .process_group import ProcessInfo, rendezvous_file

LINE = 64  # bytes: every part is aligned to the cache's lines
CELLS, CELL = 4, 1 << 18
SPACE = CELLS * (LINE + CELL)
_COUNTING, _MAX = 1, 2**30  # the kind of a semaphore; 0 would be a lock
# With as many ranks as cores, a rank that spins steals the time of the one that it
# waits for. So it tries a few times, then lets others work, then sleeps, and then reads
# the status table.
_TRIES, _YIELDS, _SHORT_NAPS = 50, 200, 40
_NAP, _LONG_NAP = 5e-5, 5e-4  # seconds
_READ_EVERY = 100  # long naps
_SETTLE = 1.0  # seconds until the others have noted for whom they wait
_SHORT = 2**18  # bytes of a vector that a star sums faster than a ring
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
Transfer = Iterator[int | None]  # moves a message; yields the rank it waits for, if any


class Channel:
    """One end of a ring in `memory`, which has SPACE bytes; `name` is both ends'."""

    def __init__(self, memory: np.ndarray, name: str) -> None:
        self.free, self.full = semaphore(f"{name}a", CELLS), semaphore(f"{name}b", 0)
        self._cells = _forever(memory.reshape(CELLS, LINE + CELL))

    def next_cell(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the next cell: its head, of whole numbers, and its bytes."""
        return next(self._cells)


def _forever(cells: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    both = [(cell[:LINE].view(np.int64), cell[LINE:]) for cell in cells]
    while True:
        yield from both


def semaphore_name(file: Path) -> str:
    """Return the beginning of the names that belong to a file of a launch's folder."""
    word = file.parent.name.rpartition("-")[2]
    return f"/d2l-{word}-{file.name.rpartition(' ')[2]}-"


def semaphore(name: str, value: int) -> SemLock:
    """Open one of the two ends of a semaphore that begins with `value` posts.

    Who comes first makes it. The second removes its name, so that nothing is left when
    both processes have ended.
    """
    try:
        return SemLock(_COUNTING, value, _MAX, name, False)
    except FileExistsError:
        found = SemLock._rebuild(0, _COUNTING, _MAX, name)
        sem_unlink(name)
        return found


def map_file(path: Path, size: int) -> np.ndarray:
    """Map a file of `size` bytes, all zeros at first, into this process's memory."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)  # changes nothing the second time
        return np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
    finally:
        os.close(descriptor)


def connect(info: ProcessInfo) -> SharedMemory:
    """Join the group whose status table this process was given."""
    table, file = StatusTable.mine(), rendezvous_file()
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
        """Note the next call; its code goes with every message."""
        self._status.begin(call, self._label)
        if call != self._call:
            self._call, self._code = call, zlib.crc32((self._label + call).encode())

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's messages of the rounds, in place."""
        with on_host(data[0]) as memory:
            for this_round in rounds:
                self._carry(memory, messages_of(this_round, self.rank), combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Carry out an all-reduce in place: a star, or a ring for long vectors."""
        check_native(self, what)
        with on_host(data[0]) as memory:
            name = "star" if memory.nbytes <= _SHORT else "ring"
            for this_round in _rounds(name, tuple(self.ranks), memory.size):
                self._carry(memory, messages_of(this_round, self.rank), op)
        return Work()

    def part(self, parts: Parts, names: Sequence[str]) -> SharedMemory:
        """Make sub-groups of these ranks; return that of this rank, or the whole."""
        for ranks, name in zip(parts, names, strict=True):
            if self.rank in ranks:
                return self._of_some(ranks, name)
        return self

    def close(self) -> None:
        """Do nothing: the memory goes with the processes and the folder."""

    def _carry(
        self, memory: np.ndarray, messages: RankMessages, combine: Combine
    ) -> None:
        """Move all at once, but combine what arrives in the order of the rows."""
        sends: dict[int, list[Transfer]] = {}
        receives: list[Transfer] = []
        for m in messages.sends:
            part = memory[m.first : m.last]
            if m.clashes:
                part = part.copy()  # it must leave as it was before the round
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
        others = [rank for rank in self.ranks if rank != self.rank]
        sends = [self._send(rank, values) for rank in others]
        self._move([*sends, *(self._receive(r, gathered[r], None) for r in others)])
        return [gathered[rank] for rank in self.ranks]

    def _send(self, peer: int, part: np.ndarray) -> Transfer:
        """Fill cells; each names the length of the message, and its call."""
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
        """Empty cells: overwrite, or combine."""
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
        """Let all transfers go on in turn until they are done."""
        tries = 0
        gone: set[int] = set()
        while transfers:
            awaited: list[int] = []
            left = []
            for transfer in transfers:
                peer = next(transfer, self.rank)  # which is no peer: it is done
                if peer != self.rank:
                    left.append(transfer)
                if peer is not None and peer != self.rank:
                    awaited.append(peer)
            tries = tries + 1 if len(awaited) == len(transfers) else 0
            transfers, naps = left, tries - _TRIES - _YIELDS
            if naps >= 0:
                time.sleep(_NAP if naps < _SHORT_NAPS else _LONG_NAP)
                if naps % _READ_EVERY == _SHORT_NAPS:
                    gone = self._read_table(awaited, gone)
            elif tries > _TRIES:
                _yield()
        self._status.wait_for()

    def _read_table(self, awaited: list[int], gone: set[int]) -> set[int]:
        """Note for whom this rank waits; raise `PeerError` where it is in vain.

        It is if ranks make different calls, or if one of those awaited had ended (it is
        in `gone`) before the last try. Returns those that have ended by now.
        """
        table = self._status
        table.wait_for(*awaited)
        other = self._differing(table)
        ended = {rank for rank in awaited if table.read(rank).ended}
        if other is None and not ended & gone:
            return ended
        until = time.monotonic() + _SETTLE  # then the error shows where each one waits
        while other is not None and time.monotonic() < until:
            row = table.read(other)
            if row.ended or row.waits_for:
                break
            time.sleep(_LONG_NAP)
        raise self._different_calls(table)


@lru_cache(maxsize=64)
def _rounds(name: str, ranks: tuple[int, ...], length: int) -> list[Round]:
    rounds = ALLREDUCE[name](len(ranks), length)
    return [renumber(this_round, ranks) for this_round in rounds]


@contextmanager
def on_host(x: Any) -> Iterator[np.ndarray]:
    """View the memory of a tensor, flat; of one on a GPU a copy, then written back.

    Raises `InvalidInput` for a strided view.
    """
    B = backend_of(x)
    here = B.device_of(x) == "cpu"
    host = x if here else B.copy_to(x, "cpu")
    memory = backend_of(host).memory(host)
    if memory is None:
        raise InvalidInput(
            "expected a tensor that lies row by row in memory, got a strided view; "
            "copy it with B.copy_to(x, 'cpu')"
        )
    yield memory
    if not here:
        B.write_(x, 0, len(memory), host)
