"""The scripts of `examples/`, killed several times each on two machines.

The test that kills them once in every `.ci/run` does it `KILLS` times here.
"""

from __future__ import annotations

import os
from typing import Any

from processes.launchers import LAUNCHERS

from .test_runs import run_tests

TITLE = "Scripts killed and restarted"
SOURCES = (
    "examples",
    "d2lmulti/processes",
    "tests/processes/conftest.py",
    "tests/processes/launchers.py",
    "tests/processes/reading.py",
    "tests/processes/staying.py",
    "tests/processes/test_examples.py",
    "tools/evidence/scripts.py",
)
KILLS = 3  # of each script
Row = dict[str, Any]
TEST = "tests/processes/test_examples.py"


def rows(quick: bool, step: Any) -> list[Row]:
    """Kill each script; sum up which process it was and what the others did then."""
    found = []
    os.environ["D2LMULTI_KILLS"] = str(2 if quick else KILLS)
    for script in ("pytorch_ddp",) if quick else LAUNCHERS:
        step(script)
        outcome = run_tests([TEST], "-k", script, "-o", "faulthandler_timeout=0")
        if not outcome.passed or outcome.failed:
            raise RuntimeError(f"D2LMULTI_KILLS={KILLS} pytest {TEST} -k {script}")
        ((_, seen),) = outcome.recorded
        found.append(row(**seen))
    return found


def row(kills: list[tuple[str, float | None]], **seen: Any) -> Row:
    """Sum up the kills of a script: who was killed, and when the others had ended."""
    ended = [(what, seconds) for what, seconds in kills if seconds is not None]
    return seen | {
        "kills": len(kills), "launchers": sum(what == "launcher" for what, _ in kills),
        "ended": len(ended),
        "ended_without_launcher": sum(what == "launcher" for what, _ in ended),
        "seconds": max((seconds for _, seconds in ended), default=None),
    }  # fmt: skip


def wrong(rows: list[Row]) -> list[str]:
    """List the scripts that were killed too seldom; others end in an error above."""
    return [r["script"] for r in rows if r["kills"] < 2]
