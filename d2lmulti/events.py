"""Events: transfers, loads from the host, and work of devices go to listeners.

Code that moves bytes or computes on a device calls `notify` or `notify_work`. A ledger
counts the reported bytes; a timeline reads its clock. Without a listener, a call only
tests a condition. A listener has a method for each event that it needs:

    on_round(this_round, itemsize)          a round of messages was exchanged
    on_copy(source, target, count, itemsize)  the program itself copied elements
    on_load(nbytes)                         bytes were copied from host to device
    on_mark(label)                          an event with a name happened now
    on_work(tracks, name, wait)             devices work in the `with` block
    on_pipeline(devices, stages, recompute) a pipeline begins a step
    on_instruction(device, instruction)     a device begins its next instruction
    on_stored(device, stage, micro_batches, nbytes)  a stage now stores this much

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
    """Report events in the block to these listeners, too."""
    token = observers.set((*observers.get(), *listeners))
    try:
        yield
    finally:
        observers.reset(token)


@contextmanager
def unobserved() -> Iterator[None]:
    """Report no events in the block: for messages without training data."""
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
    """Report a block in which these devices work; `wait()` waits until they finish."""
    listeners = [x for x in observers.get() if hasattr(x, "on_work")]
    if not listeners:
        return _NOTHING
    stack = ExitStack()
    for listener in listeners:
        stack.enter_context(listener.on_work(tracks, name, wait))
    return stack
