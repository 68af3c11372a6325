"""How the page shows each table: what was found, how it was made, and its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]


class Shown(NamedTuple):
    """The words of a table; `found` and `rows` read them off its rows."""

    found: Callable[[list[Row]], str]
    how: str
    rows: Callable[[list[Row]], str]
    again: str = ""  # what else repeats it
