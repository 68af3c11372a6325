"""What a seeded bug is."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One mistake that is easily made: in `file`, `old` becomes `new`.

    `test`, a file below tests/ and the test's name, turns red.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
