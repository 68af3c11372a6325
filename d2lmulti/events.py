"""Observers: transfers, loads from the host and device work are reported to listeners.

Where bytes move or a device computes, `notify` or `notify_work` is called. A
ledger counts what is reported, a timeline reads its clock. Without a listener, a call
ends after one truth test. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def notify(event: str, *facts: object) -> None:
    """Report an event, by the method of `Observer` of that name, to all listeners."""
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
