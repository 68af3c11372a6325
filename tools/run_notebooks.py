"""Run `pytest --nbval chapters` once per backend, and print one table of the times.

    python tools/run_notebooks.py torch mxnet paddle
    python tools/run_notebooks.py torch --posed 8     # the CPU poses as 8 GPUs

Each backend gets a process of its own, so no framework sees another's threads. A
chapter that asks for no framework runs under the first one alone. Ends with 1 when any
of them fails, also when it finds no notebook.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import defaultdict

import nbformat
from notebook_rules import asks_for_no_framework

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORTS = ROOT / "_build" / "nbval"

Seconds = dict[str, dict[str, float]]  # chapter -> backend -> seconds


def posing(gpus: int) -> dict[str, str]:
    """Return the environment in which PyTorch's CPU poses as GPUs (tests/posed)."""
    path = [str(ROOT / "tests" / "posed"), str(ROOT), os.getenv("PYTHONPATH")]
    return {
        "D2LMULTI_POSED": str(gpus),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def without_framework() -> list[pathlib.Path]:
    """List the chapters whose first code cell is tagged as asking for no framework."""
    chapters = sorted((ROOT / "chapters").glob("*.ipynb"))
    return [p for p in chapters if asks_for_no_framework(nbformat.read(p, 4))]


def run(backend: str, arguments: list[str], posed: int = 0) -> tuple[int, pathlib.Path]:
    """Check every chapter under one backend; return pytest's status and its report."""
    report = REPORTS / f"{backend}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "chapters"]
    # Cells write no cache; with one, two backends would overwrite each other's.
    command += ["-p", "no:cacheprovider", f"--junitxml={report}", *arguments]
    environment = {
        **os.environ,
        "D2LMULTI_BACKEND": backend,
        "D2LMULTI_QUIET": "1",  # no progress bars: nbval compares stderr
        **(posing(posed) if posed else {}),
    }
    return subprocess.call(command, cwd=ROOT, env=environment), report


def seconds_by_chapter(report: pathlib.Path) -> dict[str, float]:
    """Add up what the cells of each chapter took, the kernel's start included."""
    seconds: dict[str, float] = defaultdict(float)
    if report.exists():
        for case in ET.parse(report).iter("testcase"):
            chapter = case.get("classname", "?").split(".")[-2]  # chapters.NAME.ipynb
            seconds[chapter] += float(case.get("time", 0))
    return dict(seconds)


def failures(report: pathlib.Path) -> list[str]:
    """Name each cell that failed, and give the beginning of what was said."""
    found = []
    if report.exists():
        for case in ET.parse(report).iter("testcase"):
            for part in [*case.findall("failure"), *case.findall("error")]:
                said = " ".join((part.get("message") or part.text or "").split())
                name = f"{case.get('classname')}::{case.get('name')}"
                found.append(f"  {name}: {said[:200]}")
    return found


def table(seconds: Seconds, backends: list[str]) -> str:
    """Lay out the seconds of each chapter, one column a backend, with a last sum."""
    total = {b: sum(row.get(b, 0.0) for row in seconds.values()) for b in backends}
    rows = [*sorted(seconds.items()), ("all chapters", total)]
    width = max(len(name) for name, _ in rows)
    lines = [f"{'seconds':{width}}" + "".join(f"{b:>9}" for b in backends)]
    for name, row in rows:
        cells = [f"{row[b]:9.1f}" if b in row else f"{'-':>9}" for b in backends]
        lines.append(f"{name:{width}}" + "".join(cells))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run all backends, print the table, return 0 only when every one passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("backends", nargs="+", choices=["torch", "mxnet", "paddle"])
    parser.add_argument("--pytest", default="", help="more arguments for pytest")
    parser.add_argument(
        "--posed", type=int, default=0, metavar="N", help="pose the CPU as N GPUs"
    )
    options = parser.parse_args(arguments)
    if options.posed and options.backends != ["torch"]:
        parser.error("expected torch alone with --posed: only PyTorch's CPU can pose")
    REPORTS.mkdir(parents=True, exist_ok=True)
    seconds: Seconds = defaultdict(dict)
    once = [f"--ignore={path.relative_to(ROOT)}" for path in without_framework()]
    failed = []
    since = time.time()
    for i, backend in enumerate(options.backends):
        where = f", on {options.posed} posed GPUs" * (options.posed > 0)
        print(f"\n== notebooks under {backend}{where}", flush=True)
        more = [*options.pytest.split(), *(once if i else [])]
        status, report = run(backend, more, options.posed)
        if status:
            failed.append(f"FAILED under {backend}: pytest ended with {status}")
            failed += failures(report)
        for chapter, took in seconds_by_chapter(report).items():
            seconds[chapter][backend] = took
    print(f"\n{table(seconds, options.backends)}")
    print(f"{time.time() - since:.0f} s in all, imports of the frameworks included")
    print("\n".join(failed))  # the last: the end of a log is what one sees first
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
