"""Mistakes planted in a copy of the library, and the tests that turned red."""

from __future__ import annotations

from typing import Any

from bugs.bugs import BUGS

from .planted import Found, moved
from .test_runs import Outcome, run_tests

TITLE = "Planted bugs"
SOURCES = (
    "d2lmulti",
    "tests/conftest.py",
    "tests/backends",
    "tests/bugs",
    "tests/peers/cs336",
    "tests/processes",
    "tools/evidence/bugs.py",
    "tools/evidence/planted.py",
    "tools/evidence/strategies.py",
)
TESTS = "tests/bugs/test_seeded_bugs.py"
Row = dict[str, Any]


def rows(quick: bool, step: Any) -> list[Row]:
    """Plant every bug: run its test, then the training runs of `strategies.py`."""
    if quick:
        few = BUGS[:1]
        step(few[0].name)
        tests = run_tests([f"{TESTS}::test_the_suite_turns_red[{few[0].name}]"])
    else:
        few = BUGS
        step(f"{len(few)} bugs, a run of the tests for each")
        tests = run_tests([TESTS], "-n", "2")
    found, weights = rows_of(tests), moved(few, step)
    return [row | summed_up(weights[row["bug"]]) for row in found]


def summed_up(runs: Found) -> Row:
    """Return the largest difference of all runs, and how many of them raised."""
    off = {way: x for way, x in runs.items() if not isinstance(x, str)}
    way = max(off, key=off.__getitem__, default=None)
    return {"difference": off.get(way), "way": way, "runs": len(runs),
            "raised": len(runs) - len(off)}  # fmt: skip


def rows_of(outcome: Outcome) -> list[Row]:
    """Make the rows of what the tests have recorded."""
    if outcome.failed or not outcome.passed:
        raise RuntimeError(f"{TESTS}: {outcome.failed or 'no test ran'}")
    files = {bug.name: bug.file for bug in BUGS}
    return [
        {"bug": name, "file": files[name], "tests": [t.partition(" x")[0] for t in red]}
        for kind, (name, red) in outcome.recorded
        if kind == "bug"
    ]


def wrong(rows: list[Row]) -> list[str]:
    """List the bugs that nobody noticed."""
    return [f"nobody noticed: {r['bug']}" for r in rows if not r["tests"]]
