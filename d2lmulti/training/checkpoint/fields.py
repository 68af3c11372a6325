"""What may stand in a checkpoint: its fields, their types, and how they fit together.

The same rules hold before a run is written and after it has been read, so that a file
that was written can be read, and one that somebody made up is refused in words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as brief
from typing import Any

import numpy as np

from ...errors import plural
from ...files.npz import Unreadable

# What must be the same in the run that goes on; the rest is free.
FIXED = ("model", "dataset", "dtype", "batch_size", "seed", "optimizer", "data")
_TEXT_BYTES = 2**20  # for what hostile text takes in memory is far more
_EPOCHS = 2**20

Rule = Callable[[Any], bool]


def parse_about(text: np.ndarray | None) -> dict[str, Any]:
    """Read the text of a checkpoint; raise `Unreadable` as `check_about` does."""
    if text is None or text.dtype != np.uint8 or text.ndim != 1:
        raise Unreadable("the text about the run is not in it")
    if text.size > _TEXT_BYTES:
        raise Unreadable(f"the text about the run is longer than {_TEXT_BYTES} bytes")
    try:
        about = json.loads(text.tobytes(), parse_int=_short_int)
    except (ValueError, RecursionError) as error:
        raise Unreadable(
            f"the text about the run is no JSON: {error!s:.100}"
        ) from error
    check_about(about)
    return about


def check_about(about: Any) -> None:
    """Raise `Unreadable`, naming the field, for what no run can have saved."""
    if not isinstance(about, dict) or about.keys() != _RULES.keys():
        raise Unreadable(f"the fields are not {', '.join(_RULES)}: {brief(about)}")
    for name, rule in _RULES.items():
        if not rule(about[name]):
            raise Unreadable(f"its {name} cannot be {brief(about[name])}")
    begun = about["loss"], about["seconds"], about["bytes_moved"]
    if about["step"] == 0 and any(begun):
        raise Unreadable("no step of its epoch was taken, and it has a loss of it")


def check_arrays(arrays: Sequence[np.ndarray], dtype: str) -> None:
    """Raise `Unreadable` unless all are of the type of the run."""
    for array in arrays:
        if array.dtype != np.dtype(dtype):
            raise Unreadable(f"an array is of {array.dtype}, in a run of {dtype}")


def to_table(epochs: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Make a table of the finished epochs, one row each; refuse what is no epoch."""
    for i, epoch in enumerate(epochs):
        if not _fits(epoch, _EPOCH):
            raise Unreadable(f"its epoch {i} cannot be {brief(epoch)}")
    rows = [[epoch[name] for name in _EPOCH] for epoch in epochs]
    return np.array(rows, np.float64).reshape(-1, len(_EPOCH))


def from_table(table: np.ndarray | None, epochs: int) -> list[dict[str, Any]]:
    """Read the finished epochs from their table, of which there must be so many."""
    shape = (epochs, len(_EPOCH))
    if epochs > _EPOCHS or table is None or table.shape != shape or table.itemsize != 8:
        raise Unreadable(f"the history of its {plural(epochs, 'epoch')} is not in it")
    found = [dict(zip(_EPOCH, row, strict=True)) for row in table.tolist()]
    for epoch in found:
        whole = epoch["bytes_moved"].is_integer()
        epoch["bytes_moved"] = int(epoch["bytes_moved"]) if whole else None
    to_table(found)
    return found


def _short_int(digits: str) -> int:
    if len(digits) > 100:  # Python's time grows with the square
        raise ValueError("a number has too many digits")
    return int(digits)


def _fits(value: Any, rules: Mapping[str, Rule]) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == rules.keys()
        and all(rule(value[name]) for name, rule in rules.items())
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _is_time(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_numbers(value: Any) -> bool:
    """Whether it is a text of numbers with blanks between them."""
    try:
        return _is_text(value) and all(math.isfinite(float(w)) for w in value.split())
    except ValueError:
        return False


def _are(rule: Rule) -> Rule:
    return lambda value: isinstance(value, list) and all(map(rule, value))


def _are_settings(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    plain = (_is_text(v) or _is_finite(v) or v is None or isinstance(v, bool)
             for v in value.values())  # fmt: skip
    return all(plain) and _fits(
        {name: value.get(name) for name in _SETTINGS}, _SETTINGS
    )


_SETTINGS: dict[str, Rule] = {
    "model": _is_text,
    "dataset": _is_text,
    "data": _is_text,
    "rates": _are_numbers,
    "logits": _are_numbers,
    "dtype": lambda value: value in ("float32", "float64"),
    "batch_size": lambda value: _is_count(value) and value > 0,
    "seed": _is_count,
    "optimizer": _is_text,
}
_EPOCH: dict[str, Rule] = {
    "loss": _is_finite,
    "accuracy": lambda value: _is_time(value) and value <= 1,
    "seconds": _is_time,
    "bytes_moved": lambda value: _is_count(value) and value < 2**53,  # exact as a float
}
_COUNTS: dict[str, Rule] = {
    "params": _is_count,
    "state": _is_count,
    "buffers": _are(_is_count),
}
_RULES: dict[str, Rule] = {
    "settings": _are_settings,
    "epoch": _is_count,
    "step": _is_count,
    "loss": _is_finite,
    "seconds": _is_time,
    "bytes_moved": _is_count,
    "counts": lambda value: _fits(value, _COUNTS),
}
