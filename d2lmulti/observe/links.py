"""A table of links, (from, to) -> messages and bytes, for millions of transfers.

Rows are only noted down while rounds come in. Rows of the same link are added up when
many have gathered, or when someone looks, so a transfer costs nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import numpy as np

_SOME = 1 << 16  # rows noted down before they are added up

Side = Literal["source", "target"]
Amount = Literal["messages", "bytes"]


class LinkTable:
    """Messages and bytes of every link, exactly, as 64-bit integers."""

    def __init__(self) -> None:
        self._columns = [np.zeros(0, np.int64) for _ in range(4)]
        self._blocks: list[list[np.ndarray]] = []  # source, target, messages, bytes
        self._rows = 0
        self._seen: dict[Any, Counter[Any]] = {}  # answers, until the next round

    def enter(self, source: np.ndarray, target: np.ndarray, sizes: np.ndarray) -> None:
        """Enter one round's messages; `sizes`, in bytes, becomes the table's own."""
        self._seen.clear()
        if self._blocks:
            last = self._blocks[-1]
            # A ring has the same links in every round: no new rows.
            if source is last[0] and target is last[1]:
                last[2] += 1
                last[3] += sizes
                return
        self._blocks.append([source, target, np.ones_like(sizes), sizes])
        self._rows += len(sizes)
        if self._rows > _SOME + len(self._columns[0]):
            self._add_up()

    def by_link(self, amount: Amount) -> Counter[tuple[int, int]]:
        """Give (from, to) -> messages or bytes."""
        if amount not in self._seen:
            source, target, messages, size = (c.tolist() for c in self._add_up())
            values = size if amount == "bytes" else messages
            pairs = zip(source, target, strict=True)
            self._seen[amount] = Counter(dict(zip(pairs, values, strict=True)))
        return self._seen[amount]

    def by_rank(self, side: Side, amount: Amount) -> Counter[int]:
        """Give rank -> messages or bytes that it sent (source) or received (target)."""
        if (side, amount) not in self._seen:
            source, target, messages, size = self._add_up()
            ranks = source if side == "source" else target
            keys, sums = _sum_by(ranks, size if amount == "bytes" else messages)
            totals = dict(zip(keys.tolist(), sums[0].tolist(), strict=True))
            self._seen[side, amount] = Counter(totals)
        return self._seen[side, amount]

    def _add_up(self) -> list[np.ndarray]:
        if self._blocks:
            blocks = [self._columns, *self._blocks]
            source, target, messages, size = map(
                np.concatenate, zip(*blocks, strict=True)
            )
            width = int(target.max(initial=0)) + 1
            link, sums = _sum_by(source * width + target, messages, size)
            self._columns = [link // width, link % width, *sums]
            self._blocks, self._rows = [], 0
        return self._columns


def _sum_by(
    keys: np.ndarray, *columns: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Add up the rows of equal keys (np.bincount would add floats, and round)."""
    if not len(keys):
        return keys, list(columns)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], [np.add.reduceat(c[order], first) for c in columns]
