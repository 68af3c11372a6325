"""The ledger counts messages and bytes, per rank, per link, and per round.

    with ledger() as l:
        allreduce(data)
    l.bytes, l.messages, l.sent[0], l.links[0, 1]

It counts the messages that were exchanged, so a chapter can compare them with the
formula. All counts are exact integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..checks import MAX_RANKS
from ..events import observe
from ..plans.rounds import Round, make_round

_MAX_ROWS = 1 << 16  # of messages, before those of the same link are summed


class Mark(NamedTuple):
    """An event, with the rounds and bytes up to then: the ledger's clock."""

    label: str
    rounds: int
    bytes: int


@dataclass
class Ledger:
    """Counts of messages and bytes between devices, and of bytes from the host."""

    rounds: int = 0  #: rounds of messages
    messages: int = 0  #: between two devices
    bytes: int = 0  #: in all messages
    loaded: int = 0  #: bytes, host to devices: batches and initial parameters
    marks: list[Mark] = field(default_factory=list, repr=False)  #: names, in order
    # Of some rounds each: source, target, messages, bytes, as exact 64-bit integers.
    _rows: list[list[np.ndarray]] = field(default_factory=list, repr=False)

    def count_round(self, this_round: Round, itemsize: int) -> None:
        """Count one round of transfers of elements of `itemsize` bytes."""
        source, target = this_round.source, this_round.target
        sizes = this_round.length * itemsize
        self.rounds += 1
        self.messages += len(this_round)
        self.bytes += int(sizes.sum())
        last = self._rows[-1] if self._rows else None
        if last and source is last[0] and target is last[1]:  # a ring's next round
            last[2] += 1
            last[3] += sizes
            return
        self._rows.append([source, target, np.ones_like(sizes), sizes])
        if sum(len(rows[0]) for rows in self._rows[1:]) > _MAX_ROWS:
            self._add_up()

    def _add_up(self) -> list[np.ndarray]:
        """Sum the rows of equal links (np.bincount would sum floats, and round)."""
        empty = [np.zeros(0, np.int64)] * 4
        columns = map(np.concatenate, zip(empty, *self._rows, strict=True))
        source, target, *amounts = columns
        links, row = np.unique(source * MAX_RANKS + target, return_inverse=True)
        sums = [np.zeros(len(links), np.int64) for _ in amounts]
        for total, amount in zip(sums, amounts, strict=True):
            np.add.at(total, row, amount)
        self._rows = [[*np.divmod(links, MAX_RANKS), *sums]]
        return self._rows[0]

    def _by_rank(self, end: int, amount: int) -> Counter[int]:
        """Sum a column by the ranks that sent (end 0) or received (end 1)."""
        totals: Counter[int] = Counter()
        columns = self._add_up()
        for rank, value in zip(
            columns[end].tolist(), columns[amount].tolist(), strict=True
        ):
            totals[rank] += value
        return totals

    def count_plan(self, plan: Iterable[Round], itemsize: int) -> Ledger:
        """Count a whole plan without running it; return the ledger.

        >>> from d2lmulti.plans.allreduce import ring
        >>> Ledger().count_plan(ring(4, 100), itemsize=4).sent[0]
        600
        """
        for this_round in plan:
            self.count_round(this_round, itemsize)
        return self

    def mark(self, label: str) -> None:
        """Record an event between two rounds."""
        self.marks.append(Mark(label, self.rounds, self.bytes))

    def on_copy(self, source: int, target: int, count: int, itemsize: int) -> None:
        """Count a copy that a program made itself: a round of one message."""
        copy = make_round([source], [target], 0, count, add=False)
        self.count_round(copy, itemsize)

    def on_load(self, nbytes: int) -> None:
        """Count bytes that were copied from the host to a device."""
        self.loaded += nbytes

    on_round, on_mark = count_round, mark  # called on events of the library

    @property
    def by_label(self) -> Counter[str]:
        """Return the bytes between each mark and the one before, summed by label."""
        totals: Counter[str] = Counter()
        before = 0
        for mark in self.marks:
            totals[mark.label] += mark.bytes - before
            before = mark.bytes
        return totals

    @property
    def sent(self) -> Counter[int]:
        """Return the bytes that each rank sent."""
        return self._by_rank(0, 3)

    @property
    def received(self) -> Counter[int]:
        """Return the bytes that each rank received."""
        return self._by_rank(1, 3)

    @property
    def messages_sent(self) -> Counter[int]:
        """Return the number of messages that each rank sent."""
        return self._by_rank(0, 2)

    @property
    def links(self) -> Counter[tuple[int, int]]:
        """Return the bytes on each link, by (from, to): each direction is a link."""
        source, target, _, nbytes = (column.tolist() for column in self._add_up())
        pairs = zip(source, target, strict=True)
        return Counter(dict(zip(pairs, nbytes, strict=True)))


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count the communication inside the `with` block; ledgers may nest."""
    opened = Ledger()
    with observe(opened):
        yield opened
