"""The page: Markdown from a record, and no word about results that is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .markdown import count, folded, listed, small, table, together
from .picture import in_float64, picture
from .release import BUSY
from .shown import Shown, checks, equality, failures, speed

SHOWN: dict[str, Shown] = {
    "strategies": equality.STRATEGIES,
    "mesh": equality.MESH,
    "collectives": checks.COLLECTIVES,
    "bugs": checks.BUGS,
    "faults": failures.FAULTS,
    "scripts": failures.SCRIPTS,
    "nonsense": checks.NONSENSE,
    "ratios": speed.RATIOS,
    "sharded": speed.SHARDED,
}
COMMAND = """\
One command wrote this page from runs of the programs, and no number was typed by hand.
A wrong result stops the command, is shown here, and is a failing test:

```bash
make evidence               # all tables, half an hour
make evidence ONLY=ratios   # one table
make release-check          # may this page be published?
```

All measured values are also in `chapters/measured/evidence.json`."""


def render(record: Mapping[str, Any], tables: Mapping[str, ModuleType]) -> str:
    """Lay the page out; say which of all tables the record does not have."""
    missing = [module.TITLE for name, module in tables.items() if name not in record]
    tables = {name: module for name, module in tables.items() if name in record}
    parts = ["# Evidence", _limits(record)]
    if text := _conclusion(record):
        parts += [text, picture(record)]
    parts.append(COMMAND)
    if missing:
        parts.append(f"Not made yet, and not shown: {'; '.join(missing)}.")
    for name, module in tables.items():
        rows, shown = record[name]["rows"], SHOWN[name]
        again = f"To repeat it: `make evidence ONLY={name}`"
        if shown.again:
            again += f"; every `.ci/run` repeats part of it: `pytest {shown.again}`"
        parts += [f"## {module.TITLE}", shown.found(rows)]
        if wrong := module.wrong(rows):
            lines = [f"- {each}" for each in wrong]
            parts += ["**Wrong results:**", "\n".join(lines)]
        parts.append(folded("How, and all rows", "\n\n".join([
            f"{shown.how} {again}.", shown.rows(rows),
        ])))  # fmt: skip
    return "\n\n".join([*parts, *_machines(record, tables)]) + "\n"


def _limits(record: Mapping[str, Any]) -> str:
    """Say first what this page is not."""
    cores = sorted({str(each["machine"]["cores"]) for each in record.values()})
    weights = [r["weights"] for each in record.values() for r in each["rows"]
               if "weights" in r]  # fmt: skip
    small_networks = "small networks"
    if weights:
        small_networks += f" (at most {count(max(weights))} weights)"
    return (
        f"**Nothing on this page ran on a GPU or over a real network:** all of it ran "
        f"on {' or '.join(cores)} CPU cores of one computer, with at most four "
        f"processes or eight simulated devices, and weights were compared after 12 "
        f"steps of {small_networks}."
    )


def _conclusion(record: Mapping[str, Any]) -> str:
    """Return the conclusion of the page, in one sentence or two."""
    runs = in_float64(record)
    if not runs:
        return ""
    worst = max(r["difference"] for r in runs)
    text = (
        f"Within these limits, splitting the work changed nothing but rounding: in all "
        f"{count(sum(len(r['ranks']) for r in runs))} float64 runs, the weights "
        f"differed from those of one device by at most {small(worst)} of the largest "
        "weight of their tensor."
    )
    bugs = record.get("bugs", {"rows": []})["rows"]
    far = [r["difference"] for r in bugs if (r.get("difference") or 0) > checks.FAR]
    if far:
        text += (
            f" The {len(far)} planted bugs that change these weights change them by at "
            f"least {small(min(far))}."
        )
    return text


def _machines(record: Mapping[str, Any], tables: Mapping[str, ModuleType]) -> list[str]:
    """Tell where and when: a table of the tables, and the machine or machines."""
    lines = []
    for name, module in tables.items():
        made = record[name]["made"]
        lines.append([
            module.TITLE, together(*made["date"].split()), made["version"],
            f"`{made['sources']}`" if "sources" in made else "not recorded",
            f"{made['minutes']:.1f}", _cores(made.get("busy_before")),
            _cores(made.get("busy_after")),
        ])  # fmt: skip
    head = ["", "begun", "version", "sources (hash)", "minutes", "busy before",
            "busy after"]  # fmt: skip
    minutes = sum(record[name]["made"]["minutes"] for name in tables)
    where: dict[str, list[str]] = {}
    for name in tables:
        where.setdefault(_about(record[name]["machine"]), []).append(name)
    machines = []
    for machine, names in where.items():
        which = "All tables" if len(where) == 1 else listed(names).capitalize()
        machines.append(f"{which}: {machine}.")
    return [
        "## When and where",
        f"All tables together took {minutes:.0f} minutes. Each records a hash of the "
        "sources that it depends on, so `make release-check` can tell whether it was "
        "made from the tree that is published. The check also refuses a table if "
        f"other programs used more than {BUSY} cores in the five seconds before or "
        "after it.",
        folded("When, from which sources, and on which machine", "\n\n".join([
            table(head, lines, words=4), *machines,
            "*Busy* is the number of cores that worked while the command slept.",
        ])),
    ]  # fmt: skip


def _cores(busy: float | None) -> str:
    return "not recorded" if busy is None else f"{busy:.2f}"


def _about(machine: Mapping[str, Any]) -> str:
    first = ("processor", "cores", "memory_GiB", "system")
    software = [f"{k} {v}" for k, v in machine.items() if k not in first]
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_GiB']} "
        f"GiB of memory, {machine['system']}, {', '.join(software)}"
    )
