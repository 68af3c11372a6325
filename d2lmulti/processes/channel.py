"""A channel: bytes from one process to another through a ring of shared cells.

One process fills cells and the other empties them. Two semaphores are all the
agreement they need: how many cells are free, and how many are full. Source: Dijkstra,
Cooperating sequential processes (1965).

The semaphores are POSIX's, as the standard library's multiprocessing has them; there
they can only be passed to a child process, here both ends know their names. What a
process has written before it posts is visible to the one who takes, on every processor;
plain counters in shared memory guarantee that on x86 alone.
"""

from __future__ import annotations

import mmap
import os
from _multiprocessing import SemLock, sem_unlink  # type: ignore[import-not-found]
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LINE = 64  # bytes: every part is aligned to the cache's lines
CELLS, CELL = 4, 1 << 18
SPACE = CELLS * (LINE + CELL)
_COUNTING, _MAX = 1, 2**30  # the kind of a semaphore; 0 would be a lock


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
