"""The board: what every rank of this machine is doing, for those who wait for it.

A small file in shared memory with one row a rank, which only that rank writes. It costs
no message; whoever waits too long reads it and can name the rank it waits for, and that
rank's call. Chapter: *many_machines*.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

_FORM = struct.Struct("<qqqdQH")  # version, state, number, since, waits for, length
_ROW = 512
_TEXT = _ROW - _FORM.size

STARTING, RUNNING, FINISHED, FAILED = range(4)


class Row(NamedTuple):
    """What one rank does: call number (from 1), the call, whom it waits for."""

    state: int
    number: int
    since: float  # seconds, on the clock that all processes of a machine share
    waits_for: tuple[int, ...]
    call: str

    def in_words(self) -> str:
        """Say it in a few words."""
        if self.state == STARTING:
            return "still starting"
        if self.state in (FINISHED, FAILED):
            return "finished" if self.state == FINISHED else "failed"
        if not self.number:
            return "before its first call"
        return f"{'in' if self.waits_for else 'after'} call {self.number}, {self.call}"


class Board:
    """The rows of all ranks; this process writes that of its own rank."""

    def __init__(self, path: str | os.PathLike[str], size: int, rank: int = -1) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size * _ROW)
        self.size, self.rank = size, rank
        self._state, self._number, self._call = STARTING, 0, ""

    @staticmethod
    def create(path: Path, size: int) -> None:
        """Make an empty board."""
        path.write_bytes(bytes(size * _ROW))

    def set_state(self, state: int) -> None:
        """Note that this rank runs, has finished or has failed."""
        self._state = state
        self._write(0)

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call."""
        self._number, self._call = self._number + 1, call
        self._write(0)

    def wait_for(self, *ranks: int) -> None:
        """Note for whom this rank waits from now on; for nobody, without ranks."""
        self._write(sum(1 << min(rank, 63) for rank in ranks))

    def read(self, rank: int) -> Row:
        """Read the row of a rank."""
        while True:  # again, while its writer is at it
            at = rank * _ROW
            row = self._memory[at : at + _ROW]
            version, state, number, since, mask, length = _FORM.unpack_from(row)
            if version % 2 == 0 and self._memory[at : at + 8] == row[:8]:
                break
        waits_for = tuple(i for i in range(64) if mask >> i & 1)
        text = row[_FORM.size : _FORM.size + length].decode("utf-8", "replace")
        return Row(state, number, since, waits_for, text)

    def in_words(self) -> str:
        """Say who does what, and who waits for whom, one line a rank."""
        now, lines = time.monotonic(), []
        for rank in range(self.size):
            row = self.read(rank)
            line = f"rank {rank}: {row.in_words()}"
            if row.waits_for:
                others = ", ".join(f"rank {other}" for other in row.waits_for)
                line += f"; waits for {others} since {now - row.since:.1f} s"
            lines.append(line)
        return "\n".join(lines)

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()

    def _write(self, mask: int) -> None:
        text = self._call.encode()[:_TEXT]
        at = self.rank * _ROW
        (version,) = struct.unpack_from("<q", self._memory, at)
        values = (self._state, self._number, time.monotonic(), mask, len(text))
        struct.pack_into("<q", self._memory, at, version + 1)
        _FORM.pack_into(self._memory, at, version + 1, *values)
        self._memory[at + _FORM.size : at + _FORM.size + len(text)] = text
        struct.pack_into("<q", self._memory, at, version + 2)
