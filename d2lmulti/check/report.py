"""What a grader says: how much was checked, or the first failure in three lines."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..backends.protocol import Backend
from ..comm.devices import devices

CLOSE = 1e-9  # relative: float64 in another order differs by less, a mistake by more


class Wrong(Exception):
    """What a case found: what was expected, and the kinds of mistake that give it."""

    def __init__(self, expected: str, *mistakes: str) -> None:
        super().__init__(expected)
        self.expected, self.mistakes = expected, mistakes


class Case(NamedTuple):
    """One input: its description, and a call that raises `Wrong` if it fails."""

    words: str
    run: Callable[[], None]


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
        mistake = self.mistake or "This is none of the usual mistakes."
        return (
            f"{self.name}: wrong for {self.failed}. {self.expected}\n"
            f"{mistake}\n"
            f"The chapter {self.where} explains it."
        )


def grade(name: str, covers: str, where: str, cases: Iterable[Case]) -> Report:
    """Run cases, the small ones first, up to the first failure.

    Where several kinds of mistake give the same result for a small input, further cases
    tell them apart.
    """
    checked, failed, expected = 0, "", ""
    mistakes: list[str] = []
    for case in cases:
        try:
            _judged(case)
        except Wrong as wrong:
            if not failed:
                failed, expected = case.words, wrong.expected
                mistakes = list(wrong.mistakes)
            mistakes = [m for m in mistakes if m in wrong.mistakes] or mistakes
            if len(mistakes) < 2:
                break
        checked += not failed
    return Report(name, checked, covers, where, failed, expected, *mistakes[:1])


def _judged(case: Case) -> None:
    """Run a case; an answer that cannot be compared at all is wrong too."""
    try:
        case.run()
    except Wrong:
        raise
    except Exception as error:
        found = f"The answer cannot be compared: {error}.".replace("..", ".")
        words = "It has another form than the grader's description asks for."
        raise Wrong(found, words) from error


def called(f: Callable[..., Any], *arguments: Any) -> Any:
    """Call the reader's function; what it raises is a failure of the case."""
    try:
        return f(*arguments)
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raised = f"{type(error).__name__}: {error}".strip().rstrip(".")
        raise Wrong(
            f"Your function raised {raised}.",
            f"The error came from line {line.lineno}: {line.line}",
        ) from error


def number(count: int, noun: str) -> str:
    """Return a number and its noun: `1 device`, `2 micro-batches`."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{plural if count != 1 else ''}"


def unchanged(B: Backend, tensors: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Raise `Wrong` if the reader's function wrote to its inputs."""
    for i, (x, value) in enumerate(zip(tensors, values, strict=True)):
        if not np.array_equal(host(x, B), value):
            words = "The function wrote to an input, which its caller still needs."
            raise Wrong(f"Input {i} is not what it was.", words)


def places(B: Backend, count: int) -> list[Any]:
    """Return the framework's devices: GPUs where there are enough, else simulated."""
    return [B.native(device) for device in devices(count, B.name)]


def host(x: Any, B: Backend) -> np.ndarray:
    """Copy what the reader's function returned to a NumPy array."""
    return x if isinstance(x, np.ndarray) else np.asarray(B.numpy(x))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays agree up to rounding."""
    if a.shape != b.shape:
        return False
    size = max(float(np.abs(b).max(initial=0.0)), 1e-300)
    return bool(np.all(np.abs(a - b) <= CLOSE * size))  # False for nan


def all_same(got: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> bool:
    """Tell whether two lists of arrays agree."""
    return len(got) == len(right) and all(map(same, got, right))


def compare(
    got: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
    mistakes: Iterable[tuple[str, Sequence[np.ndarray]]] = (),
    what: str = "device",
) -> None:
    """Raise `Wrong` unless the arrays agree.

    `mistakes` are pairs: a kind of mistake, and what an implementation with it returns.
    """
    if not all_same(got, right):
        alike = [words for words, wrong in mistakes if all_same(got, wrong)]
        raise Wrong(difference(got, right, what), *alike)


def difference(
    got: Sequence[np.ndarray], right: Sequence[np.ndarray], what: str
) -> str:
    """Name the first place where two lists of arrays differ."""
    if len(got) != len(right):
        return f"Expected {len(right)} tensors, one per {what}, got {len(got)}."
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        if a.shape != b.shape:
            return f"{what} {i}: expected the shape {b.shape}, got {a.shape}."
        if not same(a, b):
            at = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
            place = f", element {', '.join(map(str, at))}" if at else ""
            return f"{what} {i}{place}: expected {b[at]:.6g}, got {a[at]:.6g}."
    return "No difference."
