"""What a grader says: how much was checked, or the first failure in three lines."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

Function = Callable[..., Any]  # a reader's
SECONDS = 20.0  # for a case; the largest takes about one
ARGUMENTS = "It takes other arguments than the grader's description says."
DOUBT = "Perhaps, though another input does not suggest it: "
FORM = "It has another form than the grader's description asks for."


class Wrong(Exception):
    """What a case found: what was expected, and the kinds of mistake that give it."""

    def __init__(self, expected: str, *mistakes: str) -> None:
        super().__init__(expected)
        self.expected, self.mistakes = expected, [m for m in mistakes if m]


class TimeIsUp(BaseException):
    """Ends a case that takes too long, also inside of `except Exception`."""


@dataclass(frozen=True)
class Report:
    """The result of a grader; it is true if everything was right."""

    name: str
    checked: int
    covers: str  # what was checked, in words
    where: str  # the chapter that explains it
    failed: str = ""  # the smallest input that fails
    expected: str = ""  # what was expected there, and what came
    mistake: str = ""  # the kind of mistake that gives this, if it is a known one

    def __bool__(self) -> bool:
        return not self.failed

    def __repr__(self) -> str:
        if self:
            return f"{self.name}: right in {self.checked} cases\n  ({self.covers})"
        found = self.expected[:1].upper() + self.expected[1:]
        mistake = self.mistake or "This is none of the usual mistakes."
        return (
            f"{self.name}: wrong for {self.failed}. {found}\n"
            f"{mistake}\n"
            f"The chapter {self.where} explains it."
        )


class Count(int):
    """A number that tells its noun: `f"{Count(2):device}"` is `2 devices`."""

    def __format__(self, noun: str) -> str:
        if not noun:
            return super().__format__(noun)
        plural = "es" if noun.endswith(("ch", "x")) else "s"
        return f"{int(self):,} {noun}{plural if self != 1 else ''}"


def grade(
    name: str,
    covers: str,
    where: str,
    words: str,
    cases: Iterable[tuple[Any, ...]],
    run: Callable[..., None],
    *given: Any,
) -> Report:
    """Call `run(*given, *case)` for each case, the small ones first, until one fails.

    `words` describe a case, such as `{:example} on {:device}`. Further failures tell
    several kinds of mistake apart, or cast doubt on the one that the first suggests.
    """
    checked, failures, failed, expected = 0, 0, "", ""
    mistakes: list[str] = []
    for case in cases:
        try:
            _judged(run, *given, *case)
        except Wrong as wrong:
            failures += 1
            if failures == 1:
                told = [Count(x) if isinstance(x, int) else x for x in case]
                failed, expected = words.format(*told), wrong.expected
                mistakes = wrong.mistakes
            agreed = [m for m in mistakes if m in wrong.mistakes]
            if agreed or not wrong.mistakes:
                mistakes = agreed or [DOUBT + m for m in mistakes[:1]]
            enough = failures > 1 and len(mistakes) < 2
            if enough or not mistakes or isinstance(wrong.__cause__, TimeIsUp):
                break
        checked += not failures
    return Report(name, checked, covers, where, failed, expected, *mistakes[:1])


def _judged(run: Callable[..., None], f: Function, *case: Any) -> None:
    """Run a case; an answer that comes too late or cannot be compared is wrong too."""
    try:
        with time_limit():
            run(f, *case)
    except Wrong:
        raise
    except TimeIsUp as error:
        name = getattr(f, "__name__", "the function")
        found = f"`{name}` did not end within {SECONDS:g} seconds."
        words = "A loop does not end, or it waits for what nobody sends."
        for line in own_lines(error)[-1:]:
            words = f"It was in `{line.name}`, line {line.lineno}: {line.line}"
        raise Wrong(found, words) from error
    except Exception as error:
        raise Wrong(f"The answer cannot be compared: {said(error)}.", FORM) from error


@contextmanager
def time_limit() -> Iterator[None]:
    """Raise `TimeIsUp` in the block after `SECONDS`.

    A signal does it, without a thread. It interrupts Python code, sleep, and waiting
    for a lock or a queue, but not one long call of compiled code, nor threads and
    processes that the block has started. A bare `except:` catches it. There is no limit
    on Windows, outside the main thread, under a debugger, and if a timer runs already.
    """

    def alarm(number: int, frame: FrameType | None) -> None:
        if sys.gettrace() is None:  # a debugger may wait for its user
            raise TimeIsUp

    main = threading.current_thread() is threading.main_thread()
    if not main or sys.platform == "win32" or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return
    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def said(error: BaseException) -> str:
    """Return an error's type and its first line."""
    first, *_ = f"{type(error).__name__}: {error}".splitlines()
    return first.strip().rstrip(".:")


def own_lines(error: BaseException) -> list[traceback.FrameSummary]:
    """List where an error passed through the file of the reader's function."""
    library = ("site-packages", str(Path(__file__).parents[1]))
    lines = traceback.extract_tb(error.__traceback__)
    others = [x for x in lines if not any(part in x.filename for part in library)]
    return [x for x in others if x.filename == others[0].filename]


def origin(error: BaseException, words: str) -> str:
    """Name the reader's line that an error came from, or say `words` if none."""
    for line in own_lines(error)[-1:]:
        return f"The error came from line {line.lineno}: {line.line}"
    return words


def called(f: Function, *arguments: Any) -> Any:
    """Call the reader's function; what it raises is a failure of the case."""
    try:
        return f(*arguments)
    except (Exception, SystemExit) as error:
        words = origin(error, ARGUMENTS if "argument" in str(error) else FORM)
        raise Wrong(f"Your function raised {said(error)}.", words) from error


def listed(answer: Any, what: str, count: int | None = None) -> list[Any]:
    """Return as a list what the reader's function returned or yields: `count` things.

    `what` is one of them, as in `output`.
    """
    expected = f"{what}s" if count is None else f"{Count(count):{what}}"
    try:
        items = iter(answer)
    except TypeError:
        words = f"Expected a list of {expected}, got {shown(answer)}."
        raise Wrong(words, FORM) from None
    found = called(list, items)  # a generator may raise an error on its way
    if count is not None and len(found) != count:
        got = f"{len(found)}" if found else "none"
        raise Wrong(f"Expected a list of {expected}, got {got}.", FORM)
    return found


def number(answer: Any) -> float:
    """Return the number that the reader's function returned."""
    with suppress(TypeError, ValueError):
        if not isinstance(answer, str):
            return float(answer)
    raise Wrong(f"Expected a number, got {shown(answer)}.", FORM)


def whole(answer: Any) -> int:
    """Return a whole number of those that the reader's function returned."""
    found = number(answer)
    if not found.is_integer():
        raise Wrong(f"Expected whole numbers, got {shown(answer)}.", FORM)
    return int(found)


def shown(answer: Any) -> str:
    """Show an answer in one short line."""
    return " ".join(f"{answer!r:.80}".split())
