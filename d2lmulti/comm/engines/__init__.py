"""Engines: the only seam where bytes move between ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from ...errors import InvalidInput
from ...plans.rounds import Round

Combine = Literal["sum", "max"]  # what `add` in a round means


class Engine(Protocol):
    """How the tensors of a group's ranks reach each other."""

    name: str
    point_to_point: bool  # whether `exchange` works: plans run on it
    native: frozenset[str]  # the collectives that the engine itself has
    reducible: Collection[str]  # the dtypes that its all-reduce takes

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call, in words that all ranks share."""

    def exchange(
        self, data: Sequence[Any], this_round: Round, combine: Combine = "sum"
    ) -> None:
        """Carry out one round on `data` (one tensor per local rank), in place.

        The verb is a whole round, not `send`: an engine with blocking sends must
        order a round's pairs itself, or a ring of senders waits for ever.
        """

    def run_native(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Any:
        """Run one of the collectives named in `native`; an all-reduce is in place."""

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order; slow."""

    def close(self) -> None:
        """Let go of what the engine holds."""


@runtime_checkable
class Asynchronous(Protocol):
    """An engine whose own collectives can be under way while others compute."""

    def start_native(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Callable[[], Any]:
        """Begin one; the function that comes back waits and gives the result."""


def check_native(engine: str, native: Collection[str], what: str) -> None:
    """Refuse a collective that is none of the engine's own."""
    if what not in native:
        raise InvalidInput(
            f"expected one of {', '.join(sorted(native))} as native collective of "
            f"{engine}, got {what!r}; use one of these, or a plan where an engine has "
            "messages"
        )


def check_reducible(engine: str, reducible: Collection[str], dtype: str) -> None:
    """Refuse a dtype that the engine's own all-reduce refuses, or sums wrongly."""
    if dtype not in reducible:
        raise InvalidInput(
            f"expected one of {', '.join(reducible)} for the native all-reduce of "
            f"{engine}, got {dtype}; use another algorithm, such as ring, where the "
            "engine has messages, or convert the tensors"
        )


def nothing() -> None:
    """Wait for what has ended already."""
