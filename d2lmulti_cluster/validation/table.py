"""A table of measurements in a CSV file: its rows, and words about a wrong one."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2lmulti.checks import check_path, invalid, shown
from d2lmulti.errors import InvalidInput

MOST_BYTES = 64 * 2**20  # of a file: more is no table of measurements


@dataclass(frozen=True)
class Row:
    """One line of the file; `number` counts lines, the header's is 1."""

    number: int
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """Give a cell's text without blanks around it; an absent column is empty."""
        return (self.cells.get(name) or "").strip()

    def count_or(self, name: str, usual: int) -> int:
        """Give a cell as a whole number, or `usual` where it is empty."""
        return self.count(name) if self.text(name) else usual

    def number_of(self, name: str, above: float = 0.0) -> float:
        """Give a cell as a finite number above `above`."""
        try:
            value = float(self.text(name))
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= above:
            raise invalid(f"a number above {above:g} as {name}", self.text(name))
        return value

    def count(self, name: str, least: int = 1, most: int = 2**40) -> int:
        """Give a cell as a whole number; 8.0 is one."""
        value = self.number_of(name, above=least - 1)
        if value != int(value) or value > most:
            raise invalid(
                f"a whole number from {least} to {most} as {name}", self.text(name)
            )
        return int(value)


def _cut(line: list[str]) -> list[str]:
    """Leave out the empty cells that some programs write at the end of a line."""
    while line and not line[-1].strip():
        line = line[:-1]
    return line


def read_table(path: Any) -> tuple[list[str], list[Row]]:
    """Read the header and the rows. Raises `InvalidInput` for what is no table."""
    file = Path(check_path("a table", path))
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InvalidInput(
                f"expected a table of at most {MOST_BYTES:,} bytes, got {file}"
            )
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = list(csv.reader(stream, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"expected a CSV file that can be read, got {file}: {why}"
        ) from error
    lines_with_numbers = [(i, line) for i, line in enumerate(lines, 1) if _cut(line)]
    if len(lines_with_numbers) < 2:
        raise InvalidInput(f"expected a header and at least one row, got {file}")
    (_, header), *rest = lines_with_numbers
    header = [name.strip() for name in _cut(header)]
    if len(set(header)) < len(header):
        raise invalid("every column once", header)
    rows = []
    for number, line in rest:
        line = _cut(line)
        if len(line) > len(header):
            raise InvalidInput(
                f"row {number}: expected at most {len(header)} cells, got {len(line)}: "
                f"{shown(line)}"
            )
        rows.append(Row(number, dict(zip(header, line, strict=False))))
    return header, rows
