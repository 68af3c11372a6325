"""The status table: what every rank of a launch is doing, and for whom it waits.

A small file in shared memory with one row per rank, which only that rank writes;
PyTorch calls such a record a flight recorder. It costs no message. Who waits too long
reads it and can name the other ranks and their calls. Chapter: *many_machines*.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
