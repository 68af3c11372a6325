"""An all-reduce through slots of shared memory that all ranks of a machine can read.

Each rank copies a block of its vector into its slot, and each adds up all slots, in
rank order, straight into its vector: two ranks touch each byte twice, and blocks stay
in the cache. While the others still copy block b, a rank adds up block b - 1.
Chapter: *many_machines*.
"""

from __future__ import annotations

import threading

import numpy as np

from .patience import Patience

LINE = 64  # bytes: the ranks' counters share no cache line
BLOCK = 1 << 19
_SLOTS = 4  # see `_combine`

fence = threading.Lock()  # taking it orders memory accesses, on any processor


def space(ranks: int) -> int:
    """Bytes of memory, all zeros at first, that `Slots` needs."""
    return ranks * (LINE + _SLOTS * BLOCK)


class Slots:
    """The slots of all ranks."""

    def __init__(
        self, memory: np.ndarray, rank: int, ranks: int, patience: Patience
    ) -> None:
        counters = memory[: ranks * LINE].reshape(ranks, LINE)
        counters = counters.view(np.int64)
        self._posted = counters[:, 0]  # blocks, by rank, ever
        self._codes = counters[:, 1 : 1 + _SLOTS]  # of the calls they belong to
        self._slots = memory[ranks * LINE :].reshape(ranks, _SLOTS, BLOCK)
        self._rank, self._ranks, self._patience = rank, ranks, patience

    def allreduce(self, x: np.ndarray, combine: np.ufunc, code: int) -> None:
        """Replace the flat vector `x` by the sum (or so) of all ranks', in place.

        `code` stands for the call; raises `RankGone` where ranks have different ones.
        """
        if self._ranks == 1:
            return
        step = BLOCK // x.itemsize
        blocks = [x[first : first + step] for first in range(0, x.size, step)]
        posted = int(self._posted[self._rank])
        for b in range(len(blocks) + 1):
            if b < len(blocks):
                self._post(posted + b, blocks[b], code)
            if b:
                self._combine(posted + b - 1, blocks[b - 1], combine)

    def _post(self, number: int, block: np.ndarray, code: int) -> None:
        # This overwrites block `number` - 4, which nobody reads any more: this rank has
        # combined number - 2, so all have posted it, and that after they had combined
        # number - 4.
        np.copyto(self._slot(self._rank, number, block), block)
        self._codes[self._rank, number % _SLOTS] = code + block.nbytes
        with fence:
            self._posted[self._rank] = number + 1

    def _combine(self, number: int, block: np.ndarray, combine: np.ufunc) -> None:
        for rank in range(self._ranks):
            while self._posted[rank] <= number:
                self._patience.wait(rank)
            self._patience.reset()
        with fence:
            slots = [self._slot(rank, number, block) for rank in range(self._ranks)]
        if np.ptp(self._codes[:, number % _SLOTS]):
            raise self._patience.in_vain()
        combine(slots[0], slots[1], out=block)
        for slot in slots[2:]:
            combine(block, slot, out=block)

    def _slot(self, rank: int, number: int, like: np.ndarray) -> np.ndarray:
        slot = self._slots[rank, number % _SLOTS, : like.nbytes]
        return slot.view(like.dtype)
