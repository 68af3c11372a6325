"""Mistakes planted in a copy of the library, and the tests that turned red."""

from __future__ import annotations

from typing import Any

from bugs.bugs import BUGS

from .markdown import listed, table
from .test_runs import Outcome, run_tests

TITLE = "Bugs planted, and who noticed"
TESTS = "tests/bugs/test_seeded_bugs.py"
Row = dict[str, Any]


def rows(quick: bool, step: Any) -> list[Row]:
    """Plant every bug; the first test that turns red ends its run."""
    if quick:
        step(BUGS[0].name)
        return rows_of(
            run_tests([f"{TESTS}::test_the_suite_turns_red[{BUGS[0].name}]"])
        )
    step(f"{len(BUGS)} bugs, a run of the tests for each")
    return rows_of(run_tests([TESTS], "-n", "2"))


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


def show(rows: list[Row]) -> str:
    """Lay out one line a bug."""
    tests = {test for r in rows for test in r["tests"]}
    body = [
        [r["bug"], f"`{r['file']}`", listed([f"`{t}`" for t in r["tests"]])]
        for r in rows
    ]
    return "\n\n".join([
        f"{len(rows)} bugs, all noticed, by {len(tests)} different tests. "
        "Tests that were written against a bug do not count for it.",
        table(["bug", "planted in", "the first test that turned red"], body, words=3),
    ])  # fmt: skip
