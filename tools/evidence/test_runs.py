"""Run tests of the suite, and take what they record: their properties, as they say."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import ROOT


class Outcome(NamedTuple):
    """What pytest said: how many passed and failed, and what the tests recorded."""

    passed: int
    failed: list[str]  # names of the tests
    recorded: list[tuple[str, Any]]  # name of the property, its value


def run_tests(paths: Sequence[str], *arguments: str) -> Outcome:
    """Run tests in a process of their own; give what became of them."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short"]
        command += ["-p", "no:nbval", "-p", "no:cacheprovider", *arguments]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *paths]
        environment = {k: v for k, v in os.environ.items() if "PYTEST" not in k}
        environment |= {"HYPOTHESIS_PROFILE": "ci", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if not report.exists():
            raise RuntimeError(f"pytest made no report:\n{done.stdout}{done.stderr}")
        return read_report(report.read_text(encoding="utf-8"))


def read_report(text: str) -> Outcome:
    """Read a report in JUnit's format."""
    cases = list(ET.fromstring(text).iter("testcase"))
    failed = [
        case.get("name", "?")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failed) - skipped
    return Outcome(passed, failed, list(_properties(cases)))


def _properties(cases: list[ET.Element]) -> Iterator[tuple[str, Any]]:
    for case in cases:
        for found in case.iter("property"):
            value = ast.literal_eval(found.get("value", "None"))
            yield found.get("name", "?"), value
