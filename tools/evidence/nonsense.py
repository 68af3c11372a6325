"""Bad values, bad options and damaged files: refused in one sentence, none accepted."""

from __future__ import annotations

from typing import Any

from .markdown import count, table
from .test_runs import run_tests

TITLE = "Nonsense refused"
Row = dict[str, Any]
VALUES, FILES = "tests/backends/test_bad_values.py", "tests/pure/test_fuzz_files.py"


def rows(quick: bool, step: Any) -> list[Row]:
    """Run the tests that try them; sum up what they count."""
    step("bad values and options")
    few = ["-k", "refused and alltoall and numpy"] if quick else []
    outcome = run_tests([VALUES], *few, "-n", "0" if quick else "2")
    failed = list(outcome.failed)
    found: list[Row] = []
    for kind in ("bad values",) if quick else ("bad values", "bad options"):
        tried = sum(n for name, n in outcome.recorded if name == kind)
        found.append({"what": kind, "tried": tried, "refused": tried, "equal": 0})
    if not quick:
        step("damaged files")
        outcome = run_tests([FILES], "-n", "2")
        failed += outcome.failed
        for name, (what, seen) in outcome.recorded:
            if name == "fuzzed":
                tried = seen["equal"] + seen["refused"]
                found.append({"what": f"damaged {what}", "tried": tried, **seen})
    if failed:
        raise RuntimeError(f"tests that try nonsense failed: {failed}")
    return found


def wrong(rows: list[Row]) -> list[str]:
    """List what was not tried, and what was neither refused nor as good as before."""
    return [
        f"{r['what']}: {r}"
        for r in rows
        if not r["tried"] or r["refused"] + r["equal"] != r["tried"]
    ]


def show(rows: list[Row]) -> str:
    """Lay out one line a kind."""
    body = []
    for r in rows:
        memory, seconds = "-", "-"
        if "memory" in r:
            memory, seconds = f"{r['memory'] / 2**20:.0f} MiB", f"{r['seconds']:.2f} s"
        equal = count(r["equal"]) if "memory" in r else "-"
        body.append([r["what"], count(r["tried"]), count(r["refused"]), equal,
                     memory, seconds])  # fmt: skip
    head = ["", "tried", "refused in one sentence", "harmless, read as before",
            "most memory", "longest"]  # fmt: skip
    return table(head, body)
