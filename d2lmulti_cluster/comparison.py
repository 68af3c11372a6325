"""Predictions compared with a table of measurements: rows, errors, summaries.

Where a table holds times or rates, the error is predicted / measured - 1 of the *time*:
a rate that is predicted twice too high is a time that is half of the real one. The
error of a *speed-up* over another row of the table is measured / predicted - 1; it says
nothing about the times, which are compared separately (`Report.absolute`). A bandwidth
is compared directly, and the error of its time is listed, too.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from d2lmulti.errors import InvalidInput


@dataclass(frozen=True)
class Row:
    """One line of the file; `number` counts lines, the header's is 1."""

    number: int
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a cell's text; an absent column gives an empty text."""
        return self.cells.get(name, "")

    def count_or(self, name: str, usual: int) -> int:
        """Return a cell as a whole number, or `usual` where it is empty."""
        return self.count(name) if self.text(name) else usual

    def number_of(self, name: str, above: float = 0.0) -> float:
        """Return a cell as a finite number above `above`."""
        try:
            value = float(self.text(name))
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= above:
            raise InvalidInput(
                f"expected a number above {above:g} as {name}, got {self.text(name)!r}"
            )
        return value

    def count(self, name: str, min: int = 1, max: int = 2**40) -> int:
        """Return a cell as a whole number; 8.0 is one."""
        value = self.number_of(name, above=min - 1)
        if value != int(value) or value > max:
            raise InvalidInput(
                f"expected a whole number from {min} to {max} as {name}, got "
                f"{self.text(name)!r}"
            )
        return int(value)


def read_table(path: Any) -> tuple[list[str], list[Row]]:
    """Return the header and the rows. Raises `InvalidInput` for an invalid table."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as stream:
            lines = [list(map(str.strip, line)) for line in csv.reader(stream)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(
            f"expected a CSV file that can be read, got {path}: {error}"
        ) from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if any(line)]
    if len(filled) < 2:
        raise InvalidInput(f"expected a header and at least one row, got {path}")
    header = [name for name in filled[0][1] if name]
    if len(set(header)) < len(header):
        raise InvalidInput(f"expected every column once, got {', '.join(header)}")
    rows = []
    for number, line in filled[1:]:
        if any(line[len(header) :]):
            raise InvalidInput(
                f"row {number}: expected at most {len(header)} cells, got {len(line)}"
            )
        rows.append(Row(number, dict(zip(header, line, strict=False))))
    return header, rows


def read_data(name: str) -> list[Row]:
    """Return the rows of one of this package's own tables."""
    _, rows = read_table(Path(__file__).with_name("data") / f"{name}.csv")
    return rows


@dataclass(frozen=True)
class Compared:
    """One row: a measured and a predicted value, in the same unit."""

    row: int
    name: str
    unit: str
    measured: float
    predicted: float
    rate: bool = False  # more is faster: the error is that of the time
    bandwidth: bool = False  # more is faster: the error is that of the value
    naive: float | None = None  # from operations / peak, or bytes / bandwidth

    @property
    def speedup(self) -> bool:
        """Return whether the value is a ratio of two rows of the table."""
        return self.unit == "x"

    @property
    def error(self) -> float:
        """Return the relative error of the time, or of the value if it is no rate."""
        return self.error_of_time if self.rate else self.predicted / self.measured - 1

    @property
    def error_of_time(self) -> float:
        if self.rate or self.bandwidth:
            return self.measured / self.predicted - 1
        return self.predicted / self.measured - 1


@dataclass
class Report:
    """The compared rows of a table, those that cannot be predicted, and notes."""

    kind: str
    rows: list[Compared] = field(default_factory=list)
    absolute: list[Compared] = field(default_factory=list)  # where rows are speed-ups
    refused: list[str] = field(default_factory=list)  # "row 7: why"
    notes: list[str] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    @contextmanager
    def predicting(self, row: Row) -> Iterator[None]:
        """Record an error in the block as the reason why a row is not predicted."""
        try:
            yield
        except InvalidInput as error:
            self.refused.append(f"row {row.number}: {error}")

    def summary(self) -> dict[str, object]:
        """Return numbers of rows, median and largest error, rank correlation."""
        counts = {"rows": len(self.rows), "refused": len(self.refused)}
        return {**counts, **_sum(self.rows), **_sum_of_times(self.absolute)}

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "kind": self.kind, "summary": self.summary(), **self.extra,
            "rows": list(map(_as_json, self.rows)),
            "absolute_rows": list(map(_as_json, self.absolute)),
            "refused_rows": self.refused, "notes": self.notes,
        }  # fmt: skip


def _as_json(row: Compared) -> dict[str, object]:
    errors = {
        "error_percent": 100 * row.error,
        "error_of_time_percent": 100 * row.error_of_time,
    }
    return {**vars(row), **errors}


def _sum(rows: list[Compared]) -> dict[str, object]:
    if not rows:
        return {}
    errors = [100 * abs(row.error) for row in rows]
    rate_errors = [100 * abs(row.predicted / row.measured - 1) for row in rows]
    speedups = [row.speedup for row in rows]
    summary: dict[str, object] = {
        "errors_of": "speed-ups" if all(speedups) else "times",
        "median_absolute_error_percent": median(errors),
        "largest_absolute_error_percent": max(errors),
        "rank_correlation": _rank_correlation(rows, lambda row: row.predicted),
        "naive_rank_correlation": _rank_correlation(rows, lambda row: row.naive),
    }
    naive = [replace(row, predicted=row.naive) for row in rows if row.naive]
    if naive:
        errors = [100 * abs(row.error) for row in naive]
        summary["naive_median_absolute_error_percent"] = median(errors)
    if any(row.bandwidth for row in rows):
        summary["errors_of"] = "times and bandwidths"
        summary |= _sum_of_times(rows)
    if any(row.rate for row in rows):
        summary["median_absolute_error_of_rate_percent"] = median(rate_errors)
    return summary


def _sum_of_times(rows: list[Compared]) -> dict[str, object]:
    if not rows:
        return {}
    errors = [100 * abs(row.error_of_time) for row in rows]
    return {
        "median_absolute_error_of_time_percent": median(errors),
        "largest_absolute_error_of_time_percent": max(errors),
    }


def _rank_correlation(
    rows: list[Compared], value: Callable[[Compared], float | None]
) -> float | None:
    """Return the lowest over the units: us and GB/s have no common order."""
    correlations = []
    for unit in {row.unit for row in rows}:
        some = [row for row in rows if row.unit == unit]
        values = [defined for defined in map(value, some) if defined is not None]
        if len(values) == len(some):
            correlations.append(
                rank_correlation([row.measured for row in some], values)
            )
    defined = [correlation for correlation in correlations if correlation is not None]
    return min(defined, default=None)


def rank_correlation(x: list[float], y: list[float]) -> float | None:
    """Return Spearman's rank correlation, in which equal values share a rank.

    None for fewer than two rows, or where one side is all equal.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 30.0])
    0.5
    """
    if len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return round(float(np.corrcoef(_ranks(x), _ranks(y))[0, 1]), 12)


def _ranks(values: list[float]) -> np.ndarray:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    middle = ends - (count - 1) / 2
    return middle[place]
