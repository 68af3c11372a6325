"""The ledger counts what moves: messages and bytes, per rank and per link.

    with ledger() as l:
        allreduce(data)
    l.bytes, l.messages, l.sent[0], l.links[0, 1]

It counts what was really exchanged, so a chapter can set it beside the formula.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from ..plans.rounds import Round

_open: ContextVar[tuple[Ledger, ...]] = ContextVar("open_ledgers", default=())


@dataclass
class Ledger:
    """Messages and bytes between devices, and bytes loaded from the host."""

    rounds: int = 0
    messages: int = 0
    bytes: int = 0
    loaded: int = 0  # host to devices: batches and initial parameters
    sent: Counter[int] = field(default_factory=Counter)  # rank -> bytes
    received: Counter[int] = field(default_factory=Counter)  # rank -> bytes
    links: Counter[tuple[int, int]] = field(default_factory=Counter)  # (from, to)

    def count_round(self, round: Round, itemsize: int) -> None:
        """Enter one round of transfers of elements of `itemsize` bytes."""
        self.rounds += 1
        self.messages += len(round)
        for transfer in round:
            size = transfer.length * itemsize
            self.bytes += size
            self.sent[transfer.source] += size
            self.received[transfer.target] += size
            self.links[transfer.source, transfer.target] += size


@contextmanager
def ledger() -> Iterator[Ledger]:
    """Count everything that moves inside the `with` block; ledgers may nest."""
    mine = Ledger()
    token = _open.set((*_open.get(), mine))
    try:
        yield mine
    finally:
        _open.reset(token)


def open_ledgers() -> tuple[Ledger, ...]:
    """Return the ledgers that count at this moment (called where bytes move)."""
    return _open.get()
