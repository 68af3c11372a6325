"""Transports: the only seam where bytes move between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from ...plans.rounds import Round

Combine = Literal["sum", "max"]  # what `add` in a round means


class Transport(Protocol):
    """How the tensors of a group's ranks reach each other."""

    name: str

    def exchange(
        self, data: Sequence[Any], round: Round, combine: Combine = "sum"
    ) -> None:
        """Carry out one round on `data` (one tensor per local rank), in place.

        The verb is a whole round, not `send`: an engine with blocking sends must
        order a round's pairs itself, or a ring of senders waits for ever.
        """
