"""Transports: the only seam where bytes move between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...plans.rounds import Round


class Transport(Protocol):
    """How the tensors of a group's ranks reach each other."""

    name: str

    def exchange(self, data: Sequence[Any], round: Round) -> None:
        """Carry out one round on `data` (one tensor per local rank), in place.

        The verb is a whole round, not `send`: an engine with blocking sends must
        order a round's pairs itself, or a ring of senders waits for ever.
        """
