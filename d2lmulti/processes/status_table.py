"""The status table: what every rank here is doing, for those who wait for it.

A small file in shared memory with one row a rank, which only that rank writes. It costs
no message; whoever waits too long reads it and can name the rank it waits for, and that
rank's call. Chapter: *many_machines*.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

# Checksum and beats, each written alone; then state, call, since, waits for, length.
_HEAD, _FORM = struct.Struct("<qq"), struct.Struct("<qqdQH")
_START = _HEAD.size + _FORM.size
_ROW = 512
_PATIENCE = 2.0  # seconds: a row takes microseconds, but its writer may have to wait

STARTING, RUNNING, FINISHED, FAILED = range(4)


class RankStatus(NamedTuple):
    """What one rank does: call number (from 1), the call, whom it waits for."""

    state: int
    number: int
    since: float  # seconds, on the clock that all processes of a machine share
    waits_for: tuple[int, ...]
    call: str
    group: str = ""  # the sub-group whose call it is, of which the number is

    @property
    def ended(self) -> bool:
        """Whether this rank will make no more calls."""
        return self.state in (FINISHED, FAILED)

    def in_words(self) -> str:
        """Say it in a few words."""
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
            self._memory = mmap.mmap(file.fileno(), size * _ROW)
        self.size, self.rank = size, rank
        self._at = rank * _ROW
        self._state, self._number, self._call = STARTING, 0, ""
        self._counts: Counter[str] = Counter()  # calls of each group
        self._heartbeats = 0

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
        self._state = state
        self._write(0)

    def begin(self, call: str, group: str = "") -> None:
        """Note that this rank makes its next call, in a sub-group if that is named."""
        self._counts[group] += 1
        self._number, self._call = self._counts[group], f"{group}\0{call}"
        self._write(0)

    def wait_for(self, *ranks: int) -> None:
        """Note for whom this rank waits from now on; for nobody, without ranks."""
        self._write(sum(1 << min(rank, 63) for rank in ranks))

    def heartbeat(self) -> None:
        """Note that this rank has looked again, and still waits."""
        self._heartbeats += 1
        struct.pack_into("<q", self._memory, self._at + 8, self._heartbeats)

    def heartbeats(self, rank: int) -> int:
        """Count how often that rank has looked for what it waits for."""
        return int(struct.unpack_from("<q", self._memory, rank * _ROW + 8)[0])

    def read(self, rank: int) -> RankStatus:
        """Read the row of a rank, as far as it got where its writer was killed."""
        at, until = rank * _ROW, 0.0
        while True:  # again, while its writer is at it
            row = self._memory[at : at + _ROW]
            checksum, _ = _HEAD.unpack_from(row)
            state, number, since, mask, length = _FORM.unpack_from(row, _HEAD.size)
            if checksum == _checksum(row[_HEAD.size : _START + length]):
                break
            now = time.monotonic()
            until = until or now + _PATIENCE
            if now > until:
                break
            time.sleep(0)  # on one core, the writer needs it
        waits_for = tuple(i for i in range(64) if mask >> i & 1)
        text = row[_START : _START + length].decode("utf-8", "replace")
        group, _, call = text.partition("\0")
        return RankStatus(state, number, since, waits_for, call, group)

    def in_words(self, rows: Mapping[int, RankStatus] | None = None) -> str:
        """Say who does what, and who waits for whom, one line a rank."""
        now, lines = time.monotonic(), []
        if rows is None:
            rows = {rank: self.read(rank) for rank in range(self.size)}
        for rank, row in sorted(rows.items()):
            line = f"rank {rank}: {row.in_words()}"
            if row.waits_for:
                others = ", ".join(f"rank {other}" for other in row.waits_for)
                line += f"; waits for {others} since {now - row.since:.1f} s"
            lines.append(line)
        return "\n".join(lines)

    def _write(self, mask: int) -> None:
        text = self._call.encode()[: _ROW - _START]
        values = self._state, self._number, time.monotonic(), mask, len(text)
        row, at = _FORM.pack(*values) + text, self._at + _HEAD.size
        self._memory[at : at + len(row)] = row
        struct.pack_into("<q", self._memory, self._at, _checksum(row))


def _checksum(row: bytes) -> int:
    """Tell a whole row from one that is being written; an empty one has none."""
    return zlib.crc32(row) if any(row) else 0
