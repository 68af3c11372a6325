"""Observers: transfers, loads from the host and device work are reported to listeners.

Where bytes move or a device computes, `notify` or `notify_work` is called. A ledger
counts what is reported, a timeline reads its clock. Without a listener, a call ends
after one truth test. A listener has a method for each event that it needs:

    on_round(this_round, itemsize)          a round of messages was exchanged
    on_copy(source, target, count, itemsize)  the program itself copied elements
    on_load(nbytes)                         bytes were copied from host to device
    on_mark(label)                          something with a name happened now
    on_work(tracks, name, wait)             devices work in the `with` block
    on_pipeline(devices, stages, recompute) a pipeline begins a step
    on_instruction(device, instruction)     a device begins its next instruction
    on_stored(device, stage, micro_batches, nbytes)  what a stage stores from now on

Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

_NOTHING = nullcontext()
observers: ContextVar[tuple[Any, ...]] = ContextVar("observers", default=())


@contextmanager
def observe(*listeners: Any) -> Iterator[None]:
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
    """Report an event to all listeners that have a method of its name."""
    for listener in observers.get():
        if method := getattr(listener, event, None):
            method(*facts)


def notify_work(
    tracks: Sequence[object], name: str, wait: Callable[[], object] | None = None
) -> AbstractContextManager[Any]:
    """Report a block in which these devices work; `wait()` waits for their end."""
    listeners = [each for each in observers.get() if hasattr(each, "on_work")]
    if not listeners:
        return _NOTHING
    stack = ExitStack()
    for listener in listeners:
        stack.enter_context(listener.on_work(tracks, name, wait))
    return stack
