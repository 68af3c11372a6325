"""Counting is watching: what moves and what computes is told to whoever listens.

Where bytes move or a device computes, one function of this file is called. A ledger
counts what it is told, a timeline reads its clock. With nobody listening, a call ends
after one truth test. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

_NOTHING = nullcontext()


class Observer:
    """Hears of what happens inside `watching`; overrides what it wants to hear."""

    def on_round(self, this_round: Any, itemsize: int) -> None:
        """A round of messages was exchanged, of elements of so many bytes."""

    def on_copy(self, source: int, target: int, count: int, itemsize: int) -> None:
        """A program copied so many elements from one device to another, by itself."""

    def on_load(self, nbytes: int) -> None:
        """So many bytes went from the host to a device."""

    def on_mark(self, label: str) -> None:
        """Something with a name happened now: a gradient is ready, say."""

    def on_work(
        self, tracks: Sequence[object], name: str, wait: Callable[[], object] | None
    ) -> AbstractContextManager[Any]:
        """These devices work in the block; `wait()` waits until they have done."""
        return _NOTHING

    def on_pipeline(self, devices: int, stages: int, recompute: bool) -> None:
        """A pipeline begins a step."""

    def on_instruction(self, device: int, instruction: Any) -> None:
        """A device of a pipeline begins its next instruction."""

    def on_stored(
        self, device: int, stage: int, micro_batches: int, nbytes: int
    ) -> None:
        """From now on a stage stores the activations of so many micro-batches."""


observers: ContextVar[tuple[Any, ...]] = ContextVar("observers", default=())


@contextmanager
def watching(*listeners: Observer) -> Iterator[None]:
    """Tell these, and those who listen already, of all that happens in the block."""
    token = observers.set((*observers.get(), *listeners))
    try:
        yield
    finally:
        observers.reset(token)


@contextmanager
def unwatched() -> Iterator[None]:
    """Tell nobody: for words between processes that are no data."""
    token = observers.set(())
    try:
        yield
    finally:
        observers.reset(token)


def moved(this_round: Any, itemsize: int) -> None:
    """Tell that a round of messages has been exchanged."""
    for listener in observers.get():
        listener.on_round(this_round, itemsize)


def told(rounds: Iterable[Any], itemsize: int) -> Iterator[Any]:
    """Give the rounds one by one; each is told when the next one is asked for."""
    for this_round in rounds:
        yield this_round
        moved(this_round, itemsize)


def copied(source: int, target: int, count: int, itemsize: int) -> None:
    """Tell that a program has copied elements from one device to another, by itself."""
    for listener in observers.get():
        listener.on_copy(source, target, count, itemsize)


def loaded(nbytes: int) -> None:
    """Tell that bytes have gone from the host to a device."""
    for listener in observers.get():
        listener.on_load(nbytes)


def mark(label: str) -> None:
    """Tell that something happened now, between two rounds."""
    for listener in observers.get():
        listener.on_mark(label)


def report(event: str, *facts: object) -> None:
    """Call the method of that name, such as `on_instruction`, of all listeners."""
    for listener in observers.get():
        getattr(listener, event)(*facts)


def working(
    tracks: Sequence[object], name: str, wait: Callable[[], object] | None = None
) -> AbstractContextManager[Any]:
    """Tell of a block in which these devices work; see `Observer.on_work`."""
    if not observers.get():
        return _NOTHING
    stack = ExitStack()
    for listener in observers.get():
        stack.enter_context(listener.on_work(tracks, name, wait))
    return stack
