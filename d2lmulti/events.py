"""Observers: transfers, loads from the host and device work are reported to listeners.

Where bytes move or a device computes, one `notify_` function of this file is called. A
ledger counts what is reported, a timeline reads its clock. Without a listener, a call
ends after one truth test. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

_NOTHING = nullcontext()


class Observer:
    """A listener for what happens inside `observe`; override what it needs."""

    def on_round(self, this_round: Any, itemsize: int) -> None:
        """A round of messages was exchanged, with elements of `itemsize` bytes."""

    def on_copy(self, source: int, target: int, count: int, itemsize: int) -> None:
        """The program itself copied elements from one device to another."""

    def on_load(self, nbytes: int) -> None:
        """Bytes were copied from the host to a device."""

    def on_mark(self, label: str) -> None:
        """Something with a name happened now, such as a gradient that is ready."""

    def on_work(
        self, tracks: Sequence[object], name: str, wait: Callable[[], object] | None
    ) -> AbstractContextManager[Any]:
        """The devices work in the block; `wait()` waits until they have finished."""
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
def observe(*listeners: Observer) -> Iterator[None]:
    """Report what happens in the block to these listeners and the present ones."""
    token = observers.set((*observers.get(), *listeners))
    try:
        yield
    finally:
        observers.reset(token)


@contextmanager
def unobserved() -> Iterator[None]:
    """Report nothing in the block: for messages between processes that are no data."""
    token = observers.set(())
    try:
        yield
    finally:
        observers.reset(token)


def notify_round(this_round: Any, itemsize: int) -> None:
    """Report an exchanged round of messages."""
    for listener in observers.get():
        listener.on_round(this_round, itemsize)


def notify_rounds(rounds: Iterable[Any], itemsize: int) -> Iterator[Any]:
    """Yield the rounds; report each when the next one is asked for."""
    for this_round in rounds:
        yield this_round
        notify_round(this_round, itemsize)


def notify_copy(source: int, target: int, count: int, itemsize: int) -> None:
    """Report a copy between devices that the program made itself."""
    for listener in observers.get():
        listener.on_copy(source, target, count, itemsize)


def notify_load(nbytes: int) -> None:
    """Report bytes copied from the host to a device."""
    for listener in observers.get():
        listener.on_load(nbytes)


def notify_mark(label: str) -> None:
    """Report that something happened now, between two rounds."""
    for listener in observers.get():
        listener.on_mark(label)


def notify(event: str, *facts: object) -> None:
    """Report what a pipeline does, by the method of that name of all listeners."""
    for listener in observers.get():
        getattr(listener, event)(*facts)


def notify_work(
    tracks: Sequence[object], name: str, wait: Callable[[], object] | None = None
) -> AbstractContextManager[Any]:
    """Report a block in which these devices work; see `Observer.on_work`."""
    if not observers.get():
        return _NOTHING
    stack = ExitStack()
    for listener in observers.get():
        stack.enter_context(listener.on_work(tracks, name, wait))
    return stack
