"""What the engines of processes share: one rank that watches what the others do.

Inside an engine's own wait nobody can read the status table. So each rank reads it when
it begins a call: of two ranks whose calls differ, the later one notices. When an engine
fails or gives up, its error comes with what all ranks were doing. NCCL's wait only
orders work on the GPU: there a missing rank shows up when a result is read, or NCCL's
own watchdog aborts the process after `D2LMULTI_TIMEOUT`.

The status table is a small file in shared memory with one row per rank, which only that
rank writes: what it is doing, and for whom it waits. PyTorch calls such a record a
flight recorder. It costs no message. Chapter: *many_machines*.
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
# A row begins with four whole numbers; then come the texts of the last two calls.
_STATE, _CALLS, _WAITS_FOR, _SINCE = range(4)
_HEAD, _TEXT = 32, 496  # bytes
_ROW = _HEAD + 2 * _TEXT


class RankStatus(NamedTuple):
    """What one rank does: its state, its call (numbered from 1), whom it waits for."""

    state: int
    number: int
    group: str  # the sub-group whose call it is, and in which the number counts
    call: str
    waits_for: tuple[int, ...]
    since: float  # seconds, on the clock that all processes of a machine share

    @property
    def ended(self) -> bool:
        """Whether this rank will make no more calls."""
        return self.state in (FINISHED, FAILED)

    def in_words(self) -> str:
        """Describe it in a few words."""
        if self.state == STARTING:
            return "still starting"
        if self.ended:
            return "finished" if self.state == FINISHED else "failed"
        if not self.number:
            return "before its first call"
        within = f" {self.group}" if self.group else ""
        return f"at call {self.number}, {self.call}{within}"


class StatusTable:
    """The rows of all ranks; this process writes that of its own rank."""

    def __init__(self, path: str | os.PathLike[str], size: int, rank: int = -1) -> None:
        with open(path, "r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), size * _ROW))
        self.size, self.rank = size, rank
        self._rows = [memory[r * _ROW : (r + 1) * _ROW] for r in range(size)]
        self._heads = [row[:_HEAD].cast("Q") for row in self._rows]
        self._counts: Counter[str] = Counter()  # calls of each group

    @staticmethod
    @cache  # a row has one writer
    def mine() -> StatusTable | None:
        """Open the table in which `launch` has given this process a row, if it did."""
        if "D2LMULTI_STATUS_TABLE" not in os.environ:
            return None
        size, rank = os.environ["D2LMULTI_WORLD_SIZE"], os.environ["D2LMULTI_RANK"]
        return StatusTable(os.environ["D2LMULTI_STATUS_TABLE"], int(size), int(rank))

    @staticmethod
    def create(path: Path, size: int) -> None:
        """Make an empty table: all ranks are starting."""
        path.write_bytes(bytes(size * _ROW))

    def set_state(self, state: int) -> None:
        """Note that this rank runs, has finished or has failed."""
        self._heads[self.rank][_STATE] = state

    def begin(self, call: str, group: str = "") -> None:
        """Note that this rank makes its next call, in a sub-group if that is named."""
        head, row = self._heads[self.rank], self._rows[self.rank]
        self._counts[group] += 1
        text = f"{self._counts[group]}\0{group}\0{call}".encode()[:_TEXT]
        calls = head[_CALLS] + 1
        row[_text_of(calls)] = text.ljust(_TEXT, b"\0")
        head[_CALLS] = calls  # last, so a reader meanwhile finds the call before

    def wait_for(self, *ranks: int) -> None:
        """Note for whom this rank waits from now on; for nobody, without ranks."""
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
        """Say who does what, and who waits for whom, one line per rank."""
        now, lines = time.monotonic(), []
        for rank in range(self.size):
            row = self.read(rank)
            line = f"rank {rank}: {row.in_words()}"
            if row.waits_for:
                others = ", ".join(f"rank {other}" for other in row.waits_for)
                line += f"; waits for {others} since {now - row.since:.1f} s"
            lines.append(line)
        return "\n".join(lines)


def _text_of(calls: int) -> slice:
    """Place the text of a call: even and odd ones take turns."""
    first = _HEAD + calls % 2 * _TEXT
    return slice(first, first + _TEXT)


class ProcessEngine:
    """The engine of one rank; the subclasses carry the bytes."""

    def __init__(self, info: ProcessInfo) -> None:
        self.rank, self.size = info.rank, info.size
        self.ranks: Sequence[int] = range(info.size)  # of this group, in the whole
        self.timeout = time_limit()
        self._group: Any = None  # the framework's own, of a sub-group
        self._label, self._call = "", "before its first call"
        self._table = StatusTable.mine()

    def begin(self, call: str) -> None:
        """Note the next call; raise `PeerError` where another rank makes another."""
        self._call = call
        if self._table:
            self._table.begin(call, self._label)
            if self._differing(self._table) is not None:
                raise self._different_calls(self._table)

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's messages of the rounds, in place."""
        x = data[0].detach()
        B = backend_of(x)
        check_contiguous(x.is_contiguous())
        for this_round in rounds:
            messages = messages_of(this_round, self.rank)
            if messages.peers:
                with self._waiting(*messages.peers), B.pause():
                    self._carry(x, messages, combine)

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order."""
        # As bytes: `all_gather_object` would unpickle, and so run, what others send.
        self.begin("allgather_text")
        own = np.frombuffer(text.encode(), np.uint8)
        sizes = [int(size[0]) for size in self._gather(np.array([len(own)]))]
        padded = np.zeros(max(1, *sizes), np.uint8)
        padded[: len(own)] = own
        gathered = zip(self._gather(padded), sizes, strict=True)
        return [values[:size].tobytes().decode() for values, size in gathered]

    def _carry(self, x: Any, messages: RankMessages, combine: Combine) -> None:
        """Send and receive this rank's messages of one round of the contiguous `x`."""
        raise NotImplementedError

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of every rank, which have one shape and dtype."""
        raise NotImplementedError

    def _of_some(self, ranks: Sequence[int], label: str, group: Any = None) -> Self:
        """Copy this engine as that of a sub-group, whose calls count separately.

        `group` is what the framework itself has made for these ranks.
        """
        engine = copy.copy(self)
        engine.ranks, engine._label, engine._group = ranks, label, group
        return engine

    @contextmanager
    def _waiting(self, *ranks: int) -> Iterator[None]:
        """Note for whom this rank waits; turn the engine's error into `PeerError`."""
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
        """Find a rank that has failed, or that will not make this rank's call."""
        own = table.read(self.rank)
        others = (rank for rank in self.ranks if _differs(table.read(rank), own))
        return next(others, None)

    def _different_calls(self, table: StatusTable) -> PeerError:
        return PeerError(
            "expected every rank to make the same calls, with the same shapes; rank "
            f"{self.rank} found that they do not. Who does what:\n{table.in_words()}"
        )


def _differs(row: RankStatus, own: RankStatus) -> bool:
    if row.group != own.group:  # calls of another group tell nothing
        return row.state == FAILED
    if row.ended:  # one that has finished may have done its part before
        return row.state == FAILED or row.number < own.number
    return row.number == own.number and row.call != own.call


def all_differ(info: ProcessInfo, store: Any, gpu: str) -> bool:
    """Tell whether every rank uses a GPU of its own, by the GPUs' unique ids.

    NCCL refuses two ranks on one GPU, so all ranks compare. The number of GPUs does not
    tell: a scheduler may show each rank one GPU of its own, and two launchers on one
    machine may choose the same. `gpu` is empty where there is none.
    """
    store.set(f"gpu of rank {info.rank}", gpu or "none")
    ids = {bytes(store.get(f"gpu of rank {rank}")) for rank in range(info.size)}
    return len(ids - {b"none"}) == info.size


def wait_for_server(address: str, port: int) -> str:
    """Wait until rank 0 listens; return the address it is reached from.

    Frameworks themselves try a few times, or every three seconds. Raises `PeerError`
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
