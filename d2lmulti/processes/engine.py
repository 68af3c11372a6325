"""The base of all engines, and the status table with which ranks detect failures.

While a rank waits inside an engine, it cannot read the status table. So each rank reads
it when it begins a call: of two ranks whose calls differ, the later one detects it. An
engine's error is reported with the calls of all ranks. NCCL's wait only orders work on
the GPU: there a missing rank is detected when a result is read, or NCCL's own watchdog
aborts the process after `D2LMULTI_TIMEOUT`.

The status table is a small file in shared memory with one row per rank, which only that
rank writes: its current call, and the ranks that it waits for. PyTorch calls such a
record a flight recorder. It needs no messages. Chapter: *many_machines*.
"""

from __future__ import annotations

import copy
import mmap
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from ..backends import backend_of
from ..checks import check_contiguous
from ..comm.group import Combine
from ..errors import PeerError, name_ranks
from ..plans.message_order import RankMessages, messages_of
from ..plans.rounds import Round
from .process_group import ProcessInfo, time_limit

Parts = Sequence[Sequence[int]]
STARTING, RUNNING, FINISHED, FAILED = range(4)
# A row begins with four integers, followed by the texts of the last two calls.
_STATE, _CALLS, _WAITS_FOR, _SINCE = range(4)
_HEAD, _TEXT = 32, 496  # bytes
_ROW = _HEAD + 2 * _TEXT


class RankStatus(NamedTuple):
    """The status of one rank: state, call (numbered from 1), awaited ranks."""

    state: int
    number: int
    group: str  # the sub-group of the call, which numbers its own calls
    call: str
    waits_for: tuple[int, ...]
    since: float  # seconds on the machine's monotonic clock

    @property
    def ended(self) -> bool:
        """Return whether this rank will make no more calls."""
        return self.state in (FINISHED, FAILED)

    def in_words(self) -> str:
        """Return a short description."""
        if self.state == STARTING:
            return "still starting"
        if self.ended:
            return "finished" if self.state == FINISHED else "failed"
        if not self.number:
            return "before its first call"
        within = f" {self.group}" if self.group else ""
        return f"at call {self.number}, {self.call}{within}"


class StatusTable:
    """The rows of all ranks; this process writes the row of its rank."""

    def __init__(self, path: str | os.PathLike[str], size: int, rank: int = -1) -> None:
        with open(path, "r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), size * _ROW))
        self.size, self.rank = size, rank
        self._rows = [memory[r * _ROW : (r + 1) * _ROW] for r in range(size)]
        self._heads = [row[:_HEAD].cast("Q") for row in self._rows]
        self._counts: Counter[str] = Counter()  # calls of each group

    @staticmethod
    @cache  # a row has one writer
    def of_this_process() -> StatusTable | None:
        """Return the table with a row for this process, if `launch` has made one."""
        if "D2LMULTI_STATUS_TABLE" not in os.environ:
            return None
        size, rank = os.environ["D2LMULTI_WORLD_SIZE"], os.environ["D2LMULTI_RANK"]
        return StatusTable(os.environ["D2LMULTI_STATUS_TABLE"], int(size), int(rank))

    @staticmethod
    def create(path: Path, size: int) -> None:
        """Create a table in which all ranks are starting."""
        path.write_bytes(bytes(size * _ROW))

    def set_state(self, state: int) -> None:
        """Record that this rank runs, has finished, or has failed."""
        self._heads[self.rank][_STATE] = state

    def begin(self, call: str, group: str = "") -> None:
        """Record this rank's next call, in a sub-group if that is named."""
        head, row = self._heads[self.rank], self._rows[self.rank]
        self._counts[group] += 1
        text = f"{self._counts[group]}\0{group}\0{call}".encode()[:_TEXT]
        calls = head[_CALLS] + 1
        row[_text_of(calls)] = text.ljust(_TEXT, b"\0")
        head[_CALLS] = calls  # last, so that a concurrent reader gets the previous call

    def wait_for(self, *ranks: int) -> None:
        """Record the ranks that this rank waits for, or none."""
        head = self._heads[self.rank]
        waits_for = sum(1 << rank for rank in ranks if rank < 64)
        if head[_WAITS_FOR] != waits_for:
            head[_SINCE] = time.monotonic_ns()
            head[_WAITS_FOR] = waits_for

    def read(self, rank: int) -> RankStatus:
        """Read the row of a rank."""
        head, row = self._heads[rank], self._rows[rank]
        calls, text = -1, b""
        while calls != head[_CALLS]:  # its text may have been overwritten
            calls = head[_CALLS]
            text = bytes(row[_text_of(calls)])
        words = text.decode("utf-8", "replace").rstrip("\0").split("\0", 2)
        number, group, call = words if calls else ("0", "", "")
        waits_for = tuple(i for i in range(64) if head[_WAITS_FOR] >> i & 1)
        state, since = head[_STATE], head[_SINCE] / 1e9
        return RankStatus(state, int(number), group, call, waits_for, since)

    def in_words(self) -> str:
        """Return the call and the awaited ranks of each rank, one line per rank."""
        now, lines = time.monotonic(), []
        for rank in range(self.size):
            row = self.read(rank)
            line = f"rank {rank}: {row.in_words()}"
            if row.waits_for:
                awaited = ", ".join(f"rank {other}" for other in row.waits_for)
                line += f"; waits for {awaited} since {now - row.since:.1f} s"
            lines.append(line)
        return "\n".join(lines)


def _text_of(calls: int) -> slice:
    """Return the place of a call's text, which even and odd calls alternate."""
    first = _HEAD + calls % 2 * _TEXT
    return slice(first, first + _TEXT)


class ProcessEngine:
    """The engine of one rank; subclasses move the bytes."""

    def __init__(self, info: ProcessInfo) -> None:
        self.rank, self.size = info.rank, info.size
        self.ranks: Sequence[int] = range(info.size)  # of this group, globally
        self.timeout = time_limit()
        self._group: Any = None  # the framework's own object of a sub-group
        self._label, self._call = "", "before its first call"
        self._table = StatusTable.of_this_process()

    def begin(self, call: str) -> None:
        """Record the next call; raise `PeerError` if another rank's call differs."""
        self._call = call
        if self._table:
            self._table.begin(call, self._label)
            if self._differing(self._table) is not None:
                raise self._different_calls(self._table)

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Execute this rank's messages of the rounds, in place."""
        x = data[0].detach()
        B = backend_of(x)
        check_contiguous(x.is_contiguous())
        for this_round in rounds:
            messages = messages_of(this_round, self.rank)
            if messages.peers:
                with self._waiting(*messages.peers), B.pause():
                    self._run_round(x, messages, combine)

    def allgather_text(self, text: str) -> list[str]:
        """Return every rank's short text on every rank, in rank order."""
        # As bytes: `all_gather_object` would unpickle, and so execute, foreign data.
        self.begin("allgather_text")
        encoded = np.frombuffer(text.encode(), np.uint8)
        sizes = [int(size[0]) for size in self._gather(np.array([len(encoded)]))]
        padded = np.zeros(max(1, *sizes), np.uint8)
        padded[: len(encoded)] = encoded
        gathered = zip(self._gather(padded), sizes, strict=True)
        return [values[:size].tobytes().decode() for values, size in gathered]

    def _run_round(self, x: Any, messages: RankMessages, combine: Combine) -> None:
        """Send and receive this rank's messages of one round of the contiguous `x`."""
        raise NotImplementedError

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of every rank, which have one shape and dtype."""
        raise NotImplementedError

    def _of_some(self, ranks: Sequence[int], label: str, group: Any = None) -> Self:
        """Return a copy of this engine for a sub-group, whose calls count separately.

        `group` is the framework's own object for these ranks.
        """
        engine = copy.copy(self)
        engine.ranks, engine._label, engine._group = ranks, label, group
        return engine

    @contextmanager
    def _waiting(self, *ranks: int) -> Iterator[None]:
        """Record the awaited ranks; turn the engine's error into `PeerError`."""
        if self._table:
            self._table.wait_for(*ranks)
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            whom = name_ranks(list(ranks)) if ranks else "all ranks"
            table = f"\n{self._table.in_words()}" if self._table else ""
            raise PeerError(
                f"rank {self.rank} expected an answer from {whom} in {self._call}, but "
                f"its engine gave up: {error}; look for the rank that stopped first"
                f"{table}"
            ) from error
        if self._table:
            self._table.wait_for()

    def _differing(self, table: StatusTable) -> int | None:
        """Return a rank that has failed, or that will not make this rank's call."""
        own_row = table.read(self.rank)
        ranks = (rank for rank in self.ranks if _differs(table.read(rank), own_row))
        return next(ranks, None)

    def _different_calls(self, table: StatusTable) -> PeerError:
        return PeerError(
            "expected every rank to make the same calls, with the same shapes; rank "
            f"{self.rank} found that they do not. Who does what:\n{table.in_words()}"
        )


def _differs(row: RankStatus, own_row: RankStatus) -> bool:
    if row.group != own_row.group:  # calls of different groups cannot be compared
        return row.state == FAILED
    if row.ended:  # it may have finished after this call
        return row.state == FAILED or row.number < own_row.number
    return row.number == own_row.number and row.call != own_row.call


def all_differ(info: ProcessInfo, store: Any, gpu: str) -> bool:
    """Return whether every rank uses a GPU of its own, by the GPUs' unique ids.

    NCCL does not support two ranks on one GPU, so all ranks compare. The number of GPUs
    is not enough: a scheduler may expose to each rank one GPU of its own, and two
    launchers on one machine may choose the same. `gpu` is empty without a GPU.
    """
    store.set(f"gpu of rank {info.rank}", gpu or "none")
    ids = {bytes(store.get(f"gpu of rank {rank}")) for rank in range(info.size)}
    return len(ids - {b"none"}) == info.size


def wait_for_server(address: str, port: int) -> str:
    """Wait until rank 0 listens; return this end's address of the connection.

    Frameworks themselves retry a few times, or every three seconds. Raises `PeerError`
    after the time limit.
    """
    end = time.monotonic() + time_limit()
    while True:
        try:
            with socket.create_connection((address, port), timeout=1) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            if time.monotonic() > end:
                raise PeerError(
                    f"expected rank 0 to listen on {address}:{port}, got: {error}; "
                    "look at its output, or at a firewall between the machines"
                ) from error
            time.sleep(0.02)
