"""What arguments may be: every function and the command line ask here, at the edge.

A check gives the value back, or raises `InvalidInput` in one sentence: what was
expected, what came, what to do. NumPy's numbers are numbers too; True is none, 1.5 and
2.0 are no counts, and nan and inf belong nowhere unless a check says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .errors import InvalidInput

T = TypeVar("T")

MOST = 2**63 - 1  # what an index of any framework can hold
MOST_RANKS = 2**16  # one table row a rank: more is a slip of the finger


def check_count(
    name: str, value: Any, least: int = 1, most: int | None = MOST, cure: str = ""
) -> int:
    """Give back a whole number from `least` to `most`, as a Python integer.

    >>> check_count("epochs", 1.5)
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected a whole number ... as epochs, got 1.5
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if whole and value >= least and (most is None or value <= most):
        return int(value)
    bounds = f"of at least {least}"
    if most not in (None, MOST):
        bounds = f"from {least} to {most}"
    elif whole and value > least:
        bounds = "of at most 64 bits"
    raise refusal(f"a whole number {bounds} as {name}", value, cure)


def check_number(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    cure: str = "",
) -> float:
    """Give back a finite number within the bounds; `most=math.inf` is no bound.

    >>> check_number("momentum", "0.9", least=0, below=1)
    Traceback (most recent call last):
    d2lmulti.errors.InvalidInput: expected a finite number ... as momentum, got '0.9'
    """
    number = isinstance(value, (int, float, np.integer, np.floating))
    if number and not isinstance(value, bool) and is_finite(value):
        plain = value.item() if isinstance(value, np.generic) else value
        if above < plain < below and least <= plain <= most:
            return plain
    words = [
        f"{word} {bound:g}"
        for word, bound in (
            ("above", above), ("of at least", least), ("below", below), ("up to", most)
        )
        if math.isfinite(bound)
    ]  # fmt: skip
    bounds = " " + " and ".join(words) if words else ""
    raise refusal(f"a finite number{bounds} as {name}", value, cure)


def check_positive(name: str, value: Any, cure: str = "") -> float:
    """Give back a finite number above 0."""
    return check_number(name, value, above=0, cure=cure)


def is_finite(value: Any) -> bool:
    """Tell whether a number is finite as a float too: 10**400 is not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_choice(name: str, value: Any, choices: Iterable[str], cure: str = "") -> str:
    """Give back one of the choices; whatever else comes is refused, also a list."""
    known = list(choices)
    if isinstance(value, str) and value in known:
        return value
    raise refusal(f"one of {', '.join(known)} as {name}", value, cure)


def check_flag(name: str, value: Any) -> bool:
    """Give back True or False, of Python or NumPy: a text like "no" would be true."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refusal(f"True or False as {name}", value)


def check_kind(name: str, value: T, kind: Any, words: str, cure: str = "") -> T:
    """Give back an instance of `kind`, which `words` describe."""
    if isinstance(value, kind):
        return value
    raise refusal(f"{words} as {name}", value, cure)


def check_list(
    name: str, value: Any, of: str, least: int = 1, cure: str = ""
) -> Sequence[Any]:
    """Give back a list or tuple of at least `least` entries; a generator is none."""
    if isinstance(value, (list, tuple)) and len(value) >= least:
        return value
    empty = isinstance(value, (list, tuple)) and not value
    came = "an empty one" if empty else shown(value)
    wanted = f"a list of {of}" if least < 2 else f"a list of at least {least} {of}"
    raise InvalidInput(f"expected {wanted} as {name}, got {came}{_then(cure)}")


def check_path(name: str, value: Any) -> str:
    """Give back the name of a file as text: a text or an `os.PathLike` of one."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if isinstance(path, str) and path and "\0" not in path:
        return path
    raise refusal(f"the name of a file as {name}", value, "pass a text or a Path")


def check_array(name: str, value: Any, kinds: str = "", words: str = "") -> np.ndarray:
    """Give back a NumPy array with rows whose `dtype.kind` is one of `kinds`."""
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        raise InvalidInput(
            f"expected {name} as a NumPy array with one row per example, got "
            f"{type(value).__name__}; convert it with numpy.asarray or B.numpy"
        )
    if kinds and value.dtype.kind not in kinds:
        raise InvalidInput(
            f"expected {words} as {name}, got an array of {value.dtype}; convert it "
            "with .astype"
        )
    return value


def check_labels(name: str, labels: Any, classes: int) -> np.ndarray:
    """Give back a NumPy array of whole numbers from 0 to `classes` - 1."""
    check_array(name, labels, "iu", "whole numbers, the labels,")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise InvalidInput(
            f"expected labels from 0 to {classes - 1} as {name}, got {labels.min()} to "
            f"{labels.max()}; number the classes from 0"
        )
    return labels


def check_finite(name: str, values: np.ndarray) -> np.ndarray:
    """Give back an array without nan and inf."""
    # A sum tells in one pass and without a second array; if it overflows, look closely.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values, dtype=np.float64)
    if np.isfinite(total) or np.isfinite(values).all():
        return values
    place = [int(i) for i in np.argwhere(~np.isfinite(values))[0]]
    raise InvalidInput(
        f"expected finite numbers as {name}, got {values[tuple(place)]} at {place}; "
        "repair the data or leave such examples out"
    )


def shown(value: Any) -> str:
    """Show a value in one short line, whatever it is."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # of an object's own, or an integer too long for Python to print
        words = f"a {type(value).__name__} that cannot be printed"
    return words if len(words) <= 60 else words[:57] + "..."


def refusal(expected: str, value: Any, cure: str = "") -> InvalidInput:
    """Make the error: what was expected, what came, what to do."""
    return InvalidInput(f"expected {expected}, got {shown(value)}{_then(cure)}")


def _then(cure: str) -> str:
    return f"; {cure}" if cure else ""
