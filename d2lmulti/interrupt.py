"""Ctrl-C: one line instead of a traceback, and never mistaken for something else."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def end_at_once() -> None:
    """Where this package is the program, let Ctrl-C end it with one line.

    That is for the time of its imports, when there is nothing yet to clean up, and when
    NumPy would call itself broken.
    """
    first = sys.argv[0] if getattr(sys, "argv", None) else ""
    if first == "-m" or os.path.basename(first) == "d2lmulti":
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_name == "__del__":  # Python ignores what that raises
            again = threading.Timer(0.01, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


@contextmanager
def raised() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` in the block, wherever it comes."""
    ended = signal.getsignal(signal.SIGINT) is _end
    if ended:
        signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        if ended:
            signal.signal(signal.SIGINT, _end)


@contextmanager
def heeded() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, which is short; a second comes at once.

    A framework that is interrupted while it is imported calls itself not installed, or
    goes on and fails later; a file that is being written would be left half done.
    """
    before = signal.getsignal(signal.SIGINT)
    here = threading.current_thread() is threading.main_thread()
    if not here or not callable(before):  # elsewhere no handler may be set
        yield
        return
    times = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
        if times:
            raise KeyboardInterrupt
