"""An all-reduce through slots of shared memory that all ranks of a machine can read.

Each rank copies a block of its vector into its slot, and each adds up all slots, in
rank order, straight into its vector: two ranks touch each byte twice, and blocks stay
in the cache. While the others still copy block b, a rank adds up block b - 1.
Chapter: *many_machines*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .backoff import Backoff
from .semaphore import Semaphore

LINE = 64  # bytes: the ranks' codes share no cache line
BLOCK = 1 << 19
_SLOTS = 4  # see `_post`


def space(ranks: int) -> int:
    """Bytes of memory that `StagingBuffers` needs."""
    return ranks * (LINE + _SLOTS * BLOCK)


class StagingBuffers:
    """The slots of a group's ranks; `name` is that of the group."""

    def __init__(
        self,
        memory: np.ndarray,
        name: str,
        rank: int,
        members: Sequence[int],
        backoff: Backoff,
    ) -> None:
        ranks = len(members)
        others = [other for other in members if other != rank]
        # A semaphore from each rank to each: how many blocks it has posted.
        self._to = [Semaphore(f"{name}{rank}s{other}") for other in others]
        self._from = {other: Semaphore(f"{name}{other}s{rank}") for other in others}
        codes = memory[: ranks * LINE].reshape(ranks, LINE).view(np.int64)
        self._codes = codes[:, :_SLOTS]  # of the calls they belong to
        self._number = 0  # of the next block, ever
        self._buffers = memory[ranks * LINE :].reshape(ranks, _SLOTS, BLOCK)
        self._at, self._ranks, self._backoff = members.index(rank), ranks, backoff

    def allreduce(self, x: np.ndarray, combine: Callable[..., None], code: int) -> None:
        """Replace the flat vector `x` by the sum (or so) of all ranks', in place.

        `code` stands for the call; raises `PeerError` where ranks have different ones.
        """
        if self._ranks == 1:
            return
        step = BLOCK // x.itemsize
        blocks = [x[first : first + step] for first in range(0, x.size, step)]
        first, self._number = self._number, self._number + len(blocks)
        for b in range(len(blocks) + 1):
            if b < len(blocks):
                self._post(first + b, blocks[b], code)
            if b:
                self._combine(first + b - 1, blocks[b - 1], combine)

    def _post(self, number: int, block: np.ndarray, code: int) -> None:
        # This overwrites block `number` - 4, which nobody reads any more: this rank has
        # combined number - 2, so all have posted it, and that after they had combined
        # number - 4.
        np.copyto(self._slot(self._at, number, block), block)
        self._codes[self._at, number % _SLOTS] = code + block.nbytes
        for semaphore in self._to:
            semaphore.post()

    def _combine(
        self, number: int, block: np.ndarray, combine: Callable[..., None]
    ) -> None:
        for rank, semaphore in self._from.items():
            while not semaphore.take():
                self._backoff.wait(rank)
            self._backoff.reset()
        slots = [self._slot(at, number, block) for at in range(self._ranks)]
        if np.ptp(self._codes[:, number % _SLOTS]):
            raise self._backoff.deadlock()
        combine(slots[0], slots[1], out=block)
        for slot in slots[2:]:
            combine(block, slot, out=block)

    def _slot(self, at: int, number: int, like: np.ndarray) -> np.ndarray:
        slot = self._buffers[at, number % _SLOTS, : like.nbytes]
        return slot.view(like.dtype)
