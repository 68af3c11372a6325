"""What a grader says: how much was checked, or the first failure in three lines."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.protocol import Backend
from ..comm.devices import devices
from ..errors import D2LMultiError

CLOSE = 1e-9  # relative: float64 in another order differs by less, a mistake by more


class Wrong(Exception):
    """What a case found: what was expected, and the kinds of mistake that give it."""

    def __init__(self, expected: str, *mistakes: str) -> None:
        super().__init__(expected)
        self.expected, self.mistakes = expected, mistakes


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


class Count(int):
    """A number that tells its noun: `f"{Count(2):device}"` is `2 devices`."""

    def __format__(self, noun: str) -> str:
        if noun in ("", "g"):
            return super().__format__(noun)
        plural = "es" if noun.endswith("ch") else "s"
        return f"{int(self)} {noun}{plural if self != 1 else ''}"


def grade(
    name: str,
    covers: str,
    where: str,
    run: Callable[..., None],
    words: str,
    cases: Iterable[tuple[Any, ...]],
) -> Report:
    """Call `run(*case)` for each case, the small ones first, up to the first failure.

    `words` describe a case, such as `{:example} on {:device}`. Where several kinds of
    mistake give the same result for a small input, further cases tell them apart.
    """
    checked, failed, expected = 0, "", ""
    mistakes: list[str] = []
    for case in cases:
        try:
            _judged(run, case)
        except Wrong as wrong:
            if not failed:
                told = [Count(x) if isinstance(x, int) else x for x in case]
                failed, expected = words.format(*told), wrong.expected
                mistakes = list(wrong.mistakes)
            mistakes = [m for m in mistakes if m in wrong.mistakes] or mistakes
            if len(mistakes) < 2:
                break
        checked += not failed
    return Report(name, checked, covers, where, failed, expected, *mistakes[:1])


def _judged(run: Callable[..., None], case: tuple[Any, ...]) -> None:
    """Run a case; an answer that cannot be compared at all is wrong too."""
    try:
        run(*case)
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
        _, *frames = traceback.extract_tb(error.__traceback__)
        words = "It takes other arguments than the grader's description says."
        if own := [line for line in frames if line.filename == frames[0].filename]:
            words = f"The error came from line {own[-1].lineno}: {own[-1].line}"
        raised = f"{type(error).__name__}: {error}".strip().rstrip(".")
        raise Wrong(f"Your function raised {raised}.", words) from error


def listed(answer: Any, count: int, what: str) -> list[Any]:
    """Return the tensors that the reader's function returned, one per device."""
    if answer is None:
        raise Wrong(f"Expected a list of {count} {what}, got None.")
    return [*answer]


def unchanged(B: Backend, tensors: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    """Raise `Wrong` if the reader's function wrote to its inputs."""
    for i, (x, value) in enumerate(zip(tensors, values, strict=True)):
        if not np.array_equal(host(x, B), value):
            words = "The function wrote to an input, which its caller still needs."
            raise Wrong(f"Input {i} is not what it was.", words)


def separate(B: Backend, tensors: Sequence[Any], words: str) -> None:
    """Raise `Wrong` if writing to one tensor changes another; keep their values."""

    def write(x: Any, value: np.ndarray) -> None:
        if isinstance(x, np.ndarray):
            x.flat[:1] = value
        else:
            B.write_(x, 0, 1, B.array(value))

    marked: list[tuple[Any, np.ndarray]] = []
    for x in tensors:
        value = host(x, B).reshape(-1)[:1].copy()
        with suppress(D2LMultiError, RuntimeError):  # a strided view cannot be marked
            write(x, np.full_like(value, len(marked)))
            marked.append((x, value))
    for i, (x, _) in enumerate(marked):
        if (host(x, B).reshape(-1)[:1] != i).any():
            raise Wrong(f"Writing to tensor {i + 1} changed tensor {i}.", words)
    for x, value in marked:
        write(x, value)


def places(B: Backend, count: int) -> list[Any]:
    """Return the framework's devices: GPUs where there are enough, else simulated."""
    return [B.native(device) for device in devices(count, B.name)]


def host(x: Any, B: Backend) -> np.ndarray:
    """Copy what the reader's function returned to a NumPy array."""
    return x if isinstance(x, np.ndarray) else np.asarray(B.numpy(x))


def same(a: np.ndarray, b: np.ndarray, close: float = CLOSE) -> bool:
    """Tell whether two arrays agree up to rounding."""
    if a.shape != b.shape:
        return False
    size = max(float(np.abs(b).max(initial=0.0)), 1e-300)
    return bool(np.all(np.abs(a - b) <= close * size))  # False for nan


def all_same(
    got: Sequence[np.ndarray], right: Sequence[np.ndarray], close: float = CLOSE
) -> bool:
    """Tell whether two lists of arrays agree."""
    if len(got) != len(right):
        return False
    return all(same(a, b, close) for a, b in zip(got, right, strict=True))


def same_bits(replicas: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise `Wrong` unless all devices have the same values, to the last bit."""
    for r, replica in enumerate(replicas):
        for a, b in zip(replica, replicas[0], strict=True):
            if not np.array_equal(a, b):
                found = f"Devices 0 and {r} differ by {np.abs(a - b).max():.0e}."
                words = "They add in another order, so that their replicas drift apart."
                raise Wrong(found, words)


ROUNDED = "This is as accurate as float32 or less: the inputs are float64."
NOT_FINITE = "Something overflowed, or 0 was divided by 0. Before exp, subtract the \
maximum."


def compare(
    got: Sequence[np.ndarray],
    right: Sequence[np.ndarray],
    mistakes: Iterable[tuple[str, Sequence[np.ndarray]]] = (),
    what: str = "device {}",
    close: float = CLOSE,
) -> None:
    """Raise `Wrong` unless the arrays agree, up to `close` of the largest value.

    `mistakes` are pairs: a kind of mistake, and what an implementation with it returns.
    `what` names an array by its number.
    """
    if all_same(got, right, close):
        return
    alike = [words for words, wrong in mistakes if all_same(got, wrong, close)]
    if not alike and all_same(got, right, 1e-5):
        alike = [ROUNDED]
    if not all(np.isfinite(x).all() for x in got):
        alike = [NOT_FINITE]
    raise Wrong(difference(got, right, what, close), *alike)


def difference(
    got: Sequence[np.ndarray], right: Sequence[np.ndarray], what: str, close: float
) -> str:
    """Name the first place where two lists of arrays differ."""
    if len(got) != len(right):
        return f"Expected {len(right)} tensors, got {len(got)}."
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        name = what.format(i)
        if a.shape != b.shape:
            return f"{name}: expected the shape {b.shape}, got {a.shape}."
        if not same(a, b, close):
            at = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
            place = f", element {', '.join(map(str, at))}" if at else ""
            digits = 6 if f"{a[at]:.6g}" != f"{b[at]:.6g}" else 12
            told = f"expected {b[at]:.{digits}g}, got {a[at]:.{digits}g}"
            return f"{name}{place}: {told}."
    return "No difference."
