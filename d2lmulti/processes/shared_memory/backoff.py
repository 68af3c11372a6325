"""Waiting for another rank: a short look, then let others work, then sleep.

With as many ranks as cores, a rank that spins steals the time of the one it waits for.
Whoever waits long looks at the status table: where everybody waits for somebody, or for
one that has ended, nobody will ever move again, and an error says who does what.
"""

from __future__ import annotations

import os
import time

from ...errors import PeerError
from ..status_table import RUNNING, RankStatus, StatusTable

_LOOKS = 50  # at a microsecond each
_YIELDS = 200
_NAPS = 40  # short ones, then long ones
_NAP, _LONG_NAP = 5e-5, 5e-4  # seconds
_BOARD_EVERY = 0.05

_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class Backoff:
    """How a rank waits: `wait` as long as there is nothing to do, then `reset`."""

    def __init__(self, table: StatusTable) -> None:
        self._table = table
        self._turns, self._next_look, self._noted = 0, 0.0, False
        self._seen: tuple[dict[int, RankStatus], dict[int, int]] = {}, {}

    def reset(self) -> None:
        """Begin anew, because something has arrived."""
        self._turns = 0
        if self._noted:
            self._table.wait_for()
            self._noted = False

    def wait(self, *ranks: int) -> None:
        """Wait a little for these ranks; raise `PeerError` where it is in vain."""
        self._turns += 1
        naps = self._turns - _LOOKS - _YIELDS
        if self._turns < _LOOKS:
            return
        if naps < 0:
            _yield()
            return
        if naps == 0:
            self._next_look = time.monotonic() + _BOARD_EVERY
        time.sleep(_NAP if naps < _NAPS else _LONG_NAP)
        if not self._noted and naps > _NAPS:
            self._table.wait_for(*ranks)
            self._noted = True
        if self._noted:
            self._table.heartbeat()
            if time.monotonic() > self._next_look:
                self._next_look += _BOARD_EVERY
                self._look()

    def _look(self) -> None:
        """Raise if all in the chain of waiting have looked twice and nothing moved."""
        table, chain = self._table, {}
        ahead = [table.rank]
        while ahead:
            rank = ahead.pop()
            row = chain[rank] = table.read(rank)
            if not row.ended and not row.waits_for:
                return  # this one is at work
            if row.state == RUNNING:
                ahead += [other for other in row.waits_for if other not in chain]
        heartbeats = {rank: table.heartbeats(rank) for rank in chain}
        rows, before = self._seen
        if rows != chain:
            self._seen = chain, heartbeats
        elif all(
            row.ended or heartbeats[r] > before[r] + 1 for r, row in chain.items()
        ):
            raise self.deadlock(table.in_words(chain))  # as they were when all waited

    def deadlock(self, words: str = "") -> PeerError:
        """Make the error that says what every rank does, now or in these words."""
        return PeerError(
            f"expected every rank to make the same calls, but rank {self._table.rank} "
            "waits in vain; make sure that all ranks come to the same calls, with the "
            f"same shapes. Who does what:\n{words or self._table.in_words()}"
        )
