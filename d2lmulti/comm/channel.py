"""A channel: bytes from one process to another through a ring in shared memory.

One process writes and one reads, so two counters are all the agreement they need. The
ring fits into the cache: what is sent is read again before it leaves it.
"""

from __future__ import annotations

import threading

import numpy as np

from ..errors import D2LMultiError

LINE = 64  # bytes: the counters share no cache line, and every part is aligned
CAPACITY = 1 << 19
_PIECE = 1 << 17  # the reader begins while the writer is at the next piece
SPACE = CAPACITY + 2 * LINE

_fence = threading.Lock()  # taking it orders memory accesses, on any processor


class Channel:
    """One end of a ring in `memory`, SPACE bytes of which it starts with zeros."""

    def __init__(self, memory: np.ndarray) -> None:
        self._written = memory[:LINE].view(np.int64)
        self._read = memory[LINE : 2 * LINE].view(np.int64)
        self._ring = memory[2 * LINE : SPACE]

    def room(self, wanted: int) -> np.ndarray:
        """Give a piece of the ring to write, of at most `wanted` bytes, or less."""
        written = int(self._written[0])
        free = CAPACITY - (written - int(self._read[0]))
        at = written % CAPACITY
        return self._ring[at : at + min(wanted, free, CAPACITY - at, _PIECE)]

    def wrote(self, count: int) -> None:
        """Pass on `count` bytes (and their padding) that have been written."""
        with _fence:
            self._written[0] += -(-count // LINE) * LINE

    def arrived(self, wanted: int) -> np.ndarray:
        """Give a piece that has arrived, of at most `wanted` bytes, or less."""
        read = int(self._read[0])
        there = int(self._written[0]) - read
        with _fence:
            at = read % CAPACITY
            return self._ring[at : at + min(wanted, there, CAPACITY - at)]

    def took(self, count: int) -> None:
        """Free `count` bytes (and their padding) that have been read."""
        with _fence:
            self._read[0] += -(-count // LINE) * LINE


class Sending:
    """A message on its way: how long it is and in which call, then its bytes."""

    def __init__(self, channel: Channel, part: np.ndarray, call: int) -> None:
        self._channel, self._call = channel, call
        self._bytes, self._done = part.view(np.uint8), -1

    def step(self) -> bool:
        """Move what there is room for; tell whether anything moved."""
        if self._done < 0:
            room = self._channel.room(LINE)
            if room.size < LINE:
                return False
            room.view(np.int64)[:2] = self._bytes.size, self._call
            self._channel.wrote(LINE)
            self._done = 0
            return True
        room = self._channel.room(self._bytes.size - self._done)
        if not room.size:
            return False
        np.copyto(room, self._bytes[self._done : self._done + room.size])
        self._channel.wrote(room.size)
        self._done += room.size
        return True

    @property
    def done(self) -> bool:
        """Whether all has been passed on."""
        return self._done == self._bytes.size


class Receiving:
    """A message to come, and what is done with it: overwrite, or combine."""

    def __init__(
        self, channel: Channel, part: np.ndarray, call: int, combine: np.ufunc | None
    ) -> None:
        self._channel, self._part, self._call = channel, part, call
        self._combine, self._done = combine, -1

    def step(self) -> bool:
        """Take what has arrived; tell whether anything has."""
        if self._done < 0:
            head = self._channel.arrived(LINE)
            if head.size < LINE:
                return False
            length, call = map(int, head.view(np.int64)[:2])
            if (length, call) != (self._part.nbytes, self._call):
                raise OtherMessage(length, self._part.nbytes)
            self._channel.took(LINE)
            self._done = 0
            return True
        size = self._part.itemsize
        piece = self._channel.arrived(self._part.nbytes - self._done * size)
        if not piece.size:
            return False
        values = piece.view(self._part.dtype)
        mine = self._part[self._done : self._done + values.size]
        if self._combine is None:
            np.copyto(mine, values)
        else:
            self._combine(mine, values, out=mine)
        self._channel.took(piece.size)
        self._done += values.size
        return True

    @property
    def done(self) -> bool:
        """Whether all has been taken."""
        return self._done == self._part.size


class OtherMessage(D2LMultiError, RuntimeError):
    """A message of another call, or of another length, than the expected one."""

    def __init__(self, length: int, expected: int) -> None:
        super().__init__(f"expected a message of {expected} bytes, got {length}")
