"""Tables that ordinary tests make: each test records a property, and these are rows."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bugs.bugs import BUGS
from processes.launchers import LAUNCHERS

from .planted import moved

ROOT = Path(__file__).resolve().parents[2]
KILLS = 3  # of each script
Row = dict[str, Any]


def recorded(*arguments: str) -> list[tuple[str, Any]]:
    """Run tests in a process of their own; return what they recorded.

    Raises RuntimeError when a test fails, or none runs.
    """
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short"]
        command += ["-p", "no:nbval", "-p", "no:cacheprovider", *arguments]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]
        environment = {k: v for k, v in os.environ.items() if "PYTEST" not in k}
        environment |= {"HYPOTHESIS_PROFILE": "ci", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stdout}{done.stderr}")
        properties = list(ET.parse(report).iter("property"))
    return [(p.get("name"), ast.literal_eval(p.get("value"))) for p in properties]


def planted_bugs(step: Any, bugs: Sequence[Any] = BUGS) -> list[Row]:
    """Plant every bug: run its test, then the training runs of `strategies.py`."""
    step(f"{len(bugs)} bugs, a run of the tests for each")
    test = "tests/bugs/test_seeded_bugs.py"
    names = [f"{test}::test_the_suite_turns_red[{bug.name}]" for bug in bugs]
    red = dict(value for name, value in recorded(*names, "-n", "2") if name == "bug")
    weights = moved(bugs, step)
    rows = []
    for bug in bugs:
        runs = weights[bug.name]
        off = {way: x for way, x in runs.items() if not isinstance(x, str)}
        rows.append({
            "bug": bug.name, "file": bug.file,
            "tests": [test.partition(" x")[0] for test in red.get(bug.name, [])],
            "difference": max(off.values(), default=None),
            "runs": len(runs), "raised": len(runs) - len(off),
        })  # fmt: skip
    return rows


def unnoticed(row: Row) -> bool:
    """Tell whether no test noticed a bug."""
    return not row["tests"]


def killed_scripts(step: Any, scripts: Sequence[str] = tuple(LAUNCHERS)) -> list[Row]:
    """Kill each script of `examples/` several times on two machines, and restart it.

    The test that kills it once in every `.ci/run` does it `KILLS` times here.
    """
    rows = []
    os.environ["D2LMULTI_KILLS"] = str(KILLS)
    for script in scripts:
        step(script)
        test = "tests/processes/test_examples.py"
        ((_, seen),) = recorded(test, "-k", script, "-o", "faulthandler_timeout=0")
        kills = seen.pop("kills")
        ended = [(what, seconds) for what, seconds in kills if seconds is not None]
        rows.append(seen | {
            "kills": len(kills), "launchers": sum(w == "launcher" for w, _ in kills),
            "ended": len(ended),
            "ended_without_launcher": sum(w == "launcher" for w, _ in ended),
            "seconds": max((seconds for _, seconds in ended), default=None),
        })  # fmt: skip
    return rows


def hardly_killed(row: Row) -> bool:
    """Tell whether a script was killed too seldom; other failures end the command."""
    return row["kills"] < 2


def invalid_input(step: Any) -> list[Row]:
    """Run the tests that try bad options and damaged files."""
    step("bad options, damaged files")
    names = "test_messages.py backends/test_cli_options.py pure/test_fuzz_files.py"
    paths = [str(ROOT / "tests" / name) for name in names.split()]
    found = recorded(*paths, "-n", "2")
    rows: list[Row] = []
    tried = sum(value for name, value in found if name == "bad options")
    rows.append({"what": "bad options", "tried": tried, "refused": tried, "equal": 0})
    for what, seen in (value for name, value in found if name == "fuzzed"):
        tried = seen["equal"] + seen["refused"]
        rows.append({"what": f"damaged {what}", "tried": tried, **seen})
    return rows


def accepted(row: Row) -> bool:
    """Tell whether something was neither refused nor as good as before."""
    return not row["tried"] or row["refused"] + row["equal"] != row["tried"]
