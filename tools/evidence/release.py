"""What keeps a record from being published: other sources, a busy machine, an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import ROOT
from .sources import digest

BUSY = 0.3  # cores that other programs may use before and after a table


def obstacles(
    record: Mapping[str, Any], tables: Mapping[str, ModuleType], root: Path = ROOT
) -> list[str]:
    """Return a sentence for each reason not to publish the record with this tree."""
    found = []
    for name, module in tables.items():
        if name not in record:
            found.append(f"{name}: the table is missing")
            continue
        made = record[name]["made"]
        if made.get("sources") != digest(module.SOURCES, root):
            found.append(f"{name}: made from other sources than this tree has")
        for when in ("before", "after"):
            busy = made.get(f"busy_{when}")
            if busy is None:
                found.append(f"{name}: nobody measured the load {when} it")
            elif busy > BUSY:
                found.append(
                    f"{name}: other programs used {busy:.2f} cores {when} it, "
                    f"at most {BUSY} are allowed"
                )
        found += [f"{name}: {text}" for text in module.wrong(record[name]["rows"])]
    return found
