"""Talking to a terminal, a pipe or a file, any of which may be closed or full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import WriteFailed


def say(text: str) -> None:
    """Print a line at once, so that it is not lost when the next one cannot be.

    Raises `BrokenPipeError` where nobody reads any more, `WriteFailed` where the output
    takes no more.
    """
    with _told():
        print(text, flush=True)


def complain(text: str) -> None:
    """Print a line on stderr; if that is not to be written to, nobody can be told."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def streams() -> Iterator[None]:
    """Give the block streams that are open, and leave nothing unwritten behind.

    A shell may close them (`2>&-`). Then Python has None in their place, and the next
    file that anyone opens gets their number: what a framework says on number 2 would
    go into a checkpoint.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open_nothing(number, name)
    try:
        yield
    finally:
        with _told():
            sys.stdout.flush()


def _open_nothing(number: int, name: str) -> None:
    file = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(number)
    except OSError:  # nobody has taken the number yet
        os.dup2(file, number)
    if file != number:
        os.close(file)
    mode = "r" if name == "stdin" else "w"
    setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What is still in the buffer would fail again when Python ends.
        ours = sys.__stdout__
        if ours is not None and ours is sys.stdout:
            os.dup2(os.open(os.devnull, os.O_WRONLY), ours.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise WriteFailed(
            f"expected to write to the standard output, but cannot: {error.strerror}; "
            "make room or choose another place"
        ) from error
