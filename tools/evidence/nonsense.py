"""Bad values, bad options and damaged files: refused in one sentence, none accepted."""

from __future__ import annotations

from typing import Any

from .test_runs import run_tests

TITLE = "Invalid input rejected"
SOURCES = (
    "d2lmulti",
    "tests/backends/bad_options.py",
    "tests/backends/test_bad_options.py",
    "tests/pure/forge.py",
    "tests/pure/forged.py",
    "tests/pure/idx_files.py",
    "tests/pure/test_forged_checkpoints.py",
    "tests/pure/test_fuzz_files.py",
    "tools/evidence/nonsense.py",
)
Row = dict[str, Any]
VALUES, FILES = "tests/backends/test_bad_options.py", "tests/pure/test_fuzz_files.py"


def rows(quick: bool, step: Any) -> list[Row]:
    """Run the tests that try them; sum up what they count."""
    step("bad options")
    few = ["-k", "refused and doctor"] if quick else []
    outcome = run_tests([VALUES], *few, "-n", "0" if quick else "2")
    failed = list(outcome.failed)
    found: list[Row] = []
    for kind in ("bad options",):
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
