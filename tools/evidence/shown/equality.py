"""The tables of weights: every strategy, and every mesh, compared with one device."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..markdown import count, listed, small, table, together
from ..strategies import ENGINES, KVSTORE, ONE
from . import Row, Shown

NOT_RUN = "not run"


def found(rows: list[Row]) -> str:
    """Return the largest difference of all runs, and in roundings."""
    double, single = (runs(rows, f"float{bits}") for bits in (64, 32))
    worst = max(r["difference"] for r in double)
    text = (
        f"In {count(sum(len(r['ranks']) for r in double))} runs in float64, no weight "
        f"on any device differed from one device's by more than {small(worst)} of the "
        f"largest weight of its tensor, which is {worst / np.finfo('float64').eps:.0f} "
        "times the machine epsilon."
    )
    for r in single:
        text += (
            f" {ENGINES[r['engine']][0]} stores float32 only; there the largest "
            f"difference was {small(r['difference'])}."
        )
    return text


def runs(rows: list[Row], dtype: str) -> list[Row]:
    """Return the rows of a dtype that were run."""
    return [r for r in rows if r["dtype"] == dtype and r["ranks"]]


def show(rows: list[Row]) -> str:
    """Lay out a table for each kind of engine, and the refusals below."""
    parts = []
    own = [e for e in ENGINES if e not in (ONE, "shared_memory")]
    for engines in ([ONE], ["shared_memory"], own):
        ours = [r for r in rows if r["engine"] in engines]
        if not ours:
            continue
        columns = list(dict.fromkeys((r["engine"], r["backend"]) for r in ours))
        cells = {(r["engine"], r["backend"], r["way"]): r for r in ours}
        body = [
            [way, *(_cell(cells.get((*column, way))) for column in columns)]
            for way in dict.fromkeys(r["way"] for r in rows)
        ]
        title = ENGINES[engines[0]][0] if len(engines) == 1 else "Frameworks' engines"
        parts.append(f"**{title[0].upper()}{title[1:]}:**")
        head = [_title(*column, engines) for column in columns]
        parts.append(table(["", *head], body))
        if notes := _notes(ours):
            parts.append(notes)
    return "\n\n".join(parts)


def _title(engine: str, backend: str, engines: list[str]) -> str:
    if len(engines) == 1:
        return backend
    name, backends = ENGINES[engine]
    return name if len(backends) == 1 else f"{name}, {backend}"


def _cell(row: Row | None) -> str:
    if row is None:
        return NOT_RUN
    if not row["ranks"]:
        return "refused"
    precision = ", float32" if row["dtype"] == "float32" else ""
    return together(small(row["difference"]), f"({len(row['ranks'])}{precision})")


def _notes(rows: list[Row]) -> str:
    """Return why something was refused, in the library's words."""
    why: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    for r in rows:
        for n, text in r["refused"].items():
            # Where another number of ranks was good, this one has to be named.
            key = (text, f", {n} ranks" if r["ranks"] else "")
            where = why[key].setdefault(r["way"], [])
            if ENGINES[r["engine"]][0] not in where:
                where.append(ENGINES[r["engine"]][0])
    lines = []
    for (text, ranks), places in why.items():
        for where in dict.fromkeys(map(tuple, places.values())):
            ways = "; ".join(way for way, p in places.items() if tuple(p) == where)
            lines.append(f"- {ways} ({listed(where)}{ranks}): refused, *{text}*")
    if any(r["engine"] == KVSTORE for r in rows):
        lines.append(f"- {ENGINES[KVSTORE][0]} is a parameter server and nothing else.")
    return "\n".join(lines)


STRATEGIES = Shown(
    found,
    "Small networks took 12 steps of SGD with momentum 0.9, once on one device and "
    "once under each strategy. A cell gives the largest difference of any weight on "
    "any device, divided by the largest weight of the same tensor on one device. The "
    "number in parentheses counts the world sizes: of 2, 3, and 4 in one process, and "
    "of 2 and 3 between processes. The last batch of each epoch has 7 examples, so it "
    "never divides evenly. The notes below each table explain what was refused.",
    show,
    "tests/backends/test_strategies.py tests/processes/test_engines.py",
)
MESH = Shown(
    found,
    "The same 12 steps and the same comparison, with the ranks on a mesh of two or "
    "three axes of two ranks each. Meshes of eight ranks ran in one process only.",
    show,
    "tests/backends tests/processes/test_engines.py -k mesh",
)
