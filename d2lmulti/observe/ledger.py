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

from ..checks import check_count, check_kind
from ..events import Observer, watching
from ..plans.rounds import Round, make_round
from .links import LinkTable


class Mark(NamedTuple):
    """Something that happened, and what had moved by then: the ledger's clock."""

    label: str
    rounds: int
    bytes: int


class RoundTotal(NamedTuple):
    """What one round moved."""

    messages: int
    bytes: int


@dataclass
class Ledger(Observer):
    """Messages and bytes between devices, and bytes loaded from the host."""

    rounds: int = 0  #: of messages
    messages: int = 0  #: between two devices
    bytes: int = 0  #: in all messages
    loaded: int = 0  #: bytes, host to devices: batches and initial parameters
    marks: list[Mark] = field(default_factory=list, repr=False)  #: names, in time
    _table: LinkTable = field(default_factory=LinkTable, repr=False)
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
        return self._table.by_rank("source", "bytes")

    @property
    def received(self) -> Counter[int]:
        """Bytes that each rank received."""
        return self._table.by_rank("target", "bytes")

    @property
    def messages_sent(self) -> Counter[int]:
        """Messages that each rank sent."""
        return self._table.by_rank("source", "messages")

    @property
    def messages_received(self) -> Counter[int]:
        """Messages that each rank received."""
        return self._table.by_rank("target", "messages")

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
    with watching(mine):
        yield mine
