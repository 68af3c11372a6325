"""The record: what every table is made of, as JSON beside the page.

A table keeps when, where and from which sources it was made, so that one can be made
again by itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

from d2lmulti.files import write_atomically, write_json

from . import (
    ROOT,
    bugs,
    collectives,
    faults,
    mesh,
    nonsense,
    page,
    ratios,
    scripts,
    sharded,
    strategies,
)

# Table -> its module, in the order of the page.
TABLES: dict[str, ModuleType] = {
    "strategies": strategies,
    "mesh": mesh,
    "collectives": collectives,
    "bugs": bugs,
    "faults": faults,
    "scripts": scripts,
    "nonsense": nonsense,
    "ratios": ratios,
    "sharded": sharded,
}
# The order of making them: timings first, while the machine is as quiet as it was.
ORDER = ("ratios", "sharded", *(n for n in TABLES if n not in ("ratios", "sharded")))
RECORD, PAGE = Path("chapters/measured/evidence.json"), Path("chapters/evidence.md")
Record = dict[str, dict[str, Any]]


def load_record(folder: Path = ROOT) -> Record:
    """Read what earlier runs have found; nothing if there was none."""
    path = folder / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def render(record: Record) -> str:
    """Write the page of a record: it holds nothing else."""
    return page.render(record, TABLES)


def write(record: Record, folder: Path = ROOT) -> Path:
    """Write record and page, each whole or not at all; return the page."""
    ordered = {name: record[name] for name in TABLES if name in record}
    for path in (RECORD, PAGE):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    write_json(folder / RECORD, ordered)
    write_atomically(folder / PAGE, render(ordered).encode())
    return folder / PAGE
