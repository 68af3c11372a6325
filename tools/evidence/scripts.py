"""The scripts of `examples/`, killed again and again on two machines.

The test that kills them once in every `.ci/run` does it ten times here.
"""

from __future__ import annotations

import os
from typing import Any

from processes.launchers import LAUNCHERS

from .markdown import table
from .test_runs import run_tests

TITLE = "Scripts killed, and gone on"
KILLS = 10  # of each script
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
    ended = [seconds for _, seconds in kills if seconds is not None]
    return seen | {
        "kills": len(kills), "launchers": sum(what == "launcher" for what, _ in kills),
        "ended": len(ended), "seconds": max(ended, default=None),
    }  # fmt: skip


def wrong(rows: list[Row]) -> list[str]:
    """List the scripts that were killed too seldom; others end in an error above."""
    return [r["script"] for r in rows if r["kills"] < 2]


def show(rows: list[Row]) -> str:
    """Lay out a line for each script."""
    head = ["", "machines", "launchers killed", "workers killed", "epochs in all",
            "the others ended by themselves", "at most after"]  # fmt: skip
    body = [
        [f"`{r['script']}.py`", r["machines"], r["launchers"],
         r["kills"] - r["launchers"], r["epochs"], f"{r['ended']} of {r['kills']}",
         "-" if r["seconds"] is None else f"{r['seconds']:.1f} s"]
        for r in rows
    ]  # fmt: skip
    return table(head, body)
