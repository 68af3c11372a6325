"""Waiting for another rank: a short look, then let others work, then sleep.

With as many ranks as cores, a rank that spins steals the time of the one it waits for.
Whoever waits long looks at the board, and fails rather than wait for ever.
"""

from __future__ import annotations

import os
import time

from ..errors import D2LMultiError
from .board import FAILED, FINISHED, Board

_LOOKS = 50  # at a microsecond each
_YIELDS = 200
_NAP = 0.0005  # seconds
_LOOK_AT_BOARD = 0.05

_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class RankGone(D2LMultiError, RuntimeError):
    """The rank that this one waits for has ended, or makes another call."""


class Patience:
    """How this rank waits; `reset` when there was something to do."""

    def __init__(self, board: Board | None) -> None:
        self.board = board
        self._turns, self._next_look, self._noted = 0, 0.0, False

    def reset(self) -> None:
        """Begin anew."""
        if self._turns:
            self._turns = 0
            if self._noted and self.board:
                self.board.wait_for()
                self._noted = False

    def wait(self, *ranks: int) -> None:
        """Wait a little for these ranks; raise `RankGone` where it is in vain."""
        self._turns += 1
        if self._turns < _LOOKS:
            return
        if self._turns < _LOOKS + _YIELDS:
            _yield()
            return
        if self._turns == _LOOKS + _YIELDS:
            self._next_look = time.monotonic() + _LOOK_AT_BOARD
        time.sleep(_NAP)
        if self.board and time.monotonic() > self._next_look:
            self._next_look += _LOOK_AT_BOARD
            self._look(*ranks)

    def _look(self, *ranks: int) -> None:
        board = self.board
        if board is None:
            return
        if not self._noted:
            board.wait_for(*ranks)
            self._noted = True
        mine = board.read(board.rank)
        for rank in ranks:
            row = board.read(rank)
            other = row.number == mine.number and row.call != mine.call
            if row.state in (FINISHED, FAILED) or other:
                raise RankGone(
                    f"expected every rank to make the same calls, but rank "
                    f"{board.rank} waits in call {mine.number}, {mine.call}, and rank "
                    f"{rank} is {row.in_words()}"
                )
