"""A channel: bytes from one process to another through a ring of cells they share.

One process fills cells and the other empties them. Two semaphores are all the agreement
they need: how many cells are free, and how many are full. The ring fits into the cache:
what is sent is read again before it leaves it. Source: Dijkstra, Cooperating sequential
processes (1965).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import D2LMultiError
from .semaphore import Semaphore

LINE = 64  # bytes: every part is aligned to the cache's lines
CELLS, CELL = 8, 1 << 16
SPACE = CELLS * (LINE + CELL)


class Channel:
    """One end of a ring in `memory`, which has SPACE bytes; `name` is both ends'."""

    def __init__(self, memory: np.ndarray, name: str) -> None:
        cells = memory.reshape(CELLS, LINE + CELL)
        self.free, self.full = Semaphore(f"{name}a", CELLS), Semaphore(f"{name}b")
        self._heads = [cell[:LINE].view(np.int64) for cell in cells]
        self._bodies = [cell[LINE:] for cell in cells]
        self._next = 0

    def turn(self) -> tuple[np.ndarray, np.ndarray]:
        """Give the next cell: its head, of whole numbers, and its bytes."""
        at, self._next = self._next, (self._next + 1) % CELLS
        return self._heads[at], self._bodies[at]


class Sending:
    """A message on its way; each cell tells its length, and in which call it is."""

    def __init__(self, channel: Channel, part: np.ndarray, call: int) -> None:
        self._channel, self._call = channel, call
        self._bytes, self._sent, self.done = part.view(np.uint8), 0, False

    def step(self) -> bool:
        """Fill a cell if one is free; tell whether one was."""
        channel, sent, size = self._channel, self._sent, self._bytes.size
        if not channel.free.take():
            return False
        head, body = channel.turn()
        head[0], head[1] = size, self._call
        piece = self._bytes[sent : sent + CELL]
        np.copyto(body[: piece.size], piece)
        channel.full.post()
        self._sent += CELL
        self.done = self._sent >= size
        return True


class Receiving:
    """A message to come, and what is done with it: overwrite, or combine."""

    def __init__(
        self,
        channel: Channel,
        part: np.ndarray,
        call: int,
        combine: Callable[..., None] | None,
    ) -> None:
        self._channel, self._part, self._call = channel, part, call
        self._combine, self._taken, self.done = combine, 0, False

    def step(self) -> bool:
        """Empty a cell if one is full; tell whether one was."""
        channel, part, taken = self._channel, self._part, self._taken
        if not channel.full.take():
            return False
        head, body = channel.turn()
        if head[0] != part.nbytes or head[1] != self._call:
            raise OtherMessage(int(head[0]), part.nbytes)
        mine = part[taken : taken + CELL // part.itemsize]
        values = body[: mine.nbytes].view(part.dtype)
        if self._combine is None:
            np.copyto(mine, values)
        else:
            self._combine(mine, values, out=mine)
        channel.free.post()
        self._taken += mine.size
        self.done = self._taken == part.size
        return True


class OtherMessage(D2LMultiError, RuntimeError):
    """A message of another call, or of another length, than the expected one."""

    def __init__(self, length: int, expected: int) -> None:
        super().__init__(f"expected a message of {expected} bytes, got {length}")
