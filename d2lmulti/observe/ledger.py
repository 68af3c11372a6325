"""The ledger counts what moves: messages and bytes, per rank, per link and per round.

    with ledger() as l:
        allreduce(data)
    l.bytes, l.messages, l.sent[0], l.links[0, 1]

It counts what was really exchanged, so a chapter can set it beside the formula. All
counts are exact integers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..checks import check_count, check_kind
from ..events import Observer, observe
from ..plans.rounds import Round, make_round

_MAX_ROWS = 1 << 16  # messages noted before those of the same link are added up


class Mark(NamedTuple):
    """Something that happened, and what had moved by then: the ledger's clock."""

    label: str
    rounds: int
    bytes: int


class RoundTotal(NamedTuple):
    """What one round moved."""

    messages: int
    bytes: int


class _LinkTable:
    """Messages and bytes of every link, as exact 64-bit integers.

    Rows are noted as rounds come in and added up when many have gathered, or when
    someone asks, so that a message costs nanoseconds.
    """

    def __init__(self) -> None:
        self._totals = [np.zeros(0, np.int64) for _ in range(4)]
        self._rounds: list[list[np.ndarray]] = []  # source, target, messages, bytes
        self._rows = 0

    def enter(self, source: np.ndarray, target: np.ndarray, sizes: np.ndarray) -> None:
        """Enter one round's messages; `sizes`, in bytes, becomes the table's own."""
        last = self._rounds[-1] if self._rounds else None
        if last and source is last[0] and target is last[1]:  # a ring's next round
            last[2] += 1
            last[3] += sizes
            return
        self._rounds.append([source, target, np.ones_like(sizes), sizes])
        self._rows += len(sizes)
        if self._rows > _MAX_ROWS + len(self._totals[0]):
            self._add_up()

    def by_link(self, amount: str) -> Counter[tuple[int, int]]:
        """Return (from, to) -> messages or bytes."""
        source, target, messages, nbytes = (c.tolist() for c in self._add_up())
        values = nbytes if amount == "bytes" else messages
        pairs = zip(source, target, strict=True)
        return Counter(dict(zip(pairs, values, strict=True)))

    def by_rank(self, end: int, amount: str) -> Counter[int]:
        """Return rank -> messages or bytes that it sent (end 0) or received (end 1)."""
        totals: Counter[int] = Counter()
        for link, value in self.by_link(amount).items():
            totals[link[end]] += value
        return totals

    def _add_up(self) -> list[np.ndarray]:
        """Add up the rows of equal links (np.bincount would add floats, and round)."""
        if self._rounds:
            rows = zip(self._totals, *self._rounds, strict=True)
            source, target, messages, nbytes = map(np.concatenate, rows)
            if len(source):
                order = np.lexsort((target, source))
                source, target = source[order], target[order]
                new = (np.diff(source) != 0) | (np.diff(target) != 0)
                first = np.flatnonzero(np.concatenate([[True], new]))
                sums = [np.add.reduceat(c[order], first) for c in (messages, nbytes)]
                self._totals = [source[first], target[first], *sums]
            self._rounds, self._rows = [], 0
        return self._totals


@dataclass
class Ledger(Observer):
    """Messages and bytes between devices, and bytes loaded from the host."""

    rounds: int = 0  #: of messages
    messages: int = 0  #: between two devices
    bytes: int = 0  #: in all messages
    loaded: int = 0  #: bytes, host to devices: batches and initial parameters
    marks: list[Mark] = field(default_factory=list, repr=False)  #: names, in time
    _table: _LinkTable = field(default_factory=_LinkTable, repr=False)
    # Plain 64-bit integers: a long run has many rounds.
    _round_messages: array[int] = field(default_factory=lambda: array("q"), repr=False)
    _round_bytes: array[int] = field(default_factory=lambda: array("q"), repr=False)

    def count_round(self, this_round: Round, itemsize: int) -> None:
        """Enter one round of transfers of elements of `itemsize` bytes."""
        check_kind("round", this_round, Round, "a Round")
        sizes = this_round.length * check_count("itemsize", itemsize, max=64)
        total = int(sizes.sum())
        self.rounds += 1
        self.messages += len(this_round)
        self.bytes += total
        self._round_messages.append(len(this_round))
        self._round_bytes.append(total)
        self._table.enter(this_round.source, this_round.target, sizes)

    def count_plan(self, plan: Iterable[Round], itemsize: int) -> Ledger:
        """Enter a whole plan without running it; returns the ledger itself.

        >>> from d2lmulti.plans.allreduce import ring
        >>> Ledger().count_plan(ring(4, 100), itemsize=4).sent[0]
        600
        """
        for this_round in plan:
            self.count_round(this_round, itemsize)
        return self

    def mark(self, label: str) -> None:
        """Note that something happened now, between two rounds."""
        self.marks.append(Mark(label, self.rounds, self.bytes))

    def on_copy(self, source: int, target: int, count: int, itemsize: int) -> None:
        """Enter a copy that a program made by itself: a round of one message."""
        copy = make_round([source], [target], 0, count, add=False)
        self.count_round(copy, itemsize)

    def on_load(self, nbytes: int) -> None:
        """Enter bytes that went from the host to a device."""
        self.loaded += nbytes

    on_round, on_mark = count_round, mark  # of what the library does meanwhile

    @property
    def by_label(self) -> Counter[str]:
        """Bytes that moved between each mark and the one before, added up by label."""
        totals: Counter[str] = Counter()
        before = 0
        for mark in self.marks:
            totals[mark.label] += mark.bytes - before
            before = mark.bytes
        return totals

    @property
    def sent(self) -> Counter[int]:
        """Bytes that each rank sent."""
        return self._table.by_rank(0, "bytes")

    @property
    def received(self) -> Counter[int]:
        """Bytes that each rank received."""
        return self._table.by_rank(1, "bytes")

    @property
    def messages_sent(self) -> Counter[int]:
        """Messages that each rank sent."""
        return self._table.by_rank(0, "messages")

    @property
    def messages_received(self) -> Counter[int]:
        """Messages that each rank received."""
        return self._table.by_rank(1, "messages")

    @property
    def links(self) -> Counter[tuple[int, int]]:
        """Bytes on each link, by (from, to): the two directions are two links."""
        return self._table.by_link("bytes")

    @property
    def link_messages(self) -> Counter[tuple[int, int]]:
        """Messages on each link, by (from, to)."""
        return self._table.by_link("messages")

    @property
    def by_round(self) -> list[RoundTotal]:
        """Messages and bytes of every round, in order."""
        totals = zip(self._round_messages, self._round_bytes, strict=True)
        return list(map(RoundTotal._make, totals))


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count everything that moves inside the `with` block; ledgers may nest."""
    mine = Ledger()
    with observe(mine):
        yield mine
