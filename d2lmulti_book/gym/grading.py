"""Run programs of the gym in processes of their own, and compare what they return."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .faults import Fault
from .runner import HUNG

ROOT = Path(__file__).resolve().parents[2]
CASES = ("0", "1:3")  # seed 0 with the program's own number of workers, seed 1 with 3
SEEDS = ("0", "1", "2", "3", "4")
SAME = 1e-8  # of the largest weight of a tensor; float64 leaves 1e-12 or so
IMPORTS = 60.0  # seconds for a framework, on a busy machine
LAST = 20_000  # bytes of what a program writes to stderr

Results = dict[str, np.ndarray]  # place, as in `0/weights/1/0` -> value


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its results, or what it printed when it crashed or hung."""

    verdict: str  # "ran", "crashed" or "hung"
    results: Results = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True)
class Grade:
    """What a grader says of a file."""

    verdict: str  # "right", "wrong", "crashed" or "hung"
    lines: tuple[str, ...]  # for the learner


def run(text: str, limit: float, cases: tuple[str, ...] = CASES) -> Outcome:
    """Run a program's text for each case in a process with a time limit.

    A program that names this package, where the solutions are, is not run.
    """
    if "d2lmulti_book" in text:
        words = "a program may not use d2lmulti_book, which holds the solutions"
        return Outcome("crashed", output=words)
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment = os.environ | quiet | {"PYTHONPATH": os.pathsep.join(path)}
    with tempfile.TemporaryDirectory(prefix="d2lmulti-gym-") as folder:
        program, results = Path(folder, "program.py"), Path(folder, "results.npz")
        program.write_text(text, encoding="utf-8")
        runner = [sys.executable, "-m", "d2lmulti_book.gym.runner"]
        command = [*runner, str(program), str(results), str(limit), *cases]
        log = Path(folder, "errors.txt")
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # nobody reads it, however much it is
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait(limit + IMPORTS)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                end(process)
        with log.open("rb") as errors:
            errors.seek(-min(log.stat().st_size, LAST), os.SEEK_END)
            output = errors.read().decode(errors="replace")
        output = output.replace(str(program), "program.py")
        if code is None:
            words = "it did not begin to train in time: its first lines take too long"
            return Outcome("hung", output=words)
        if code == HUNG or "Timeout (" in output:
            return Outcome("hung", output=output)
        if code or not results.exists():
            ended = f"the program ended before `train` returned, with exit code {code}"
            return Outcome("crashed", output=output or ended)
        with np.load(results, allow_pickle=False) as file:
            return Outcome("ran", dict(file))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program, and what it may have started."""
    process.kill()
    if os.name == "posix":
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compare(found: Results, expected: Results) -> tuple[str, ...]:
    """Return what differs from a correct program's results; nothing if it is right.

    Compared are all weights of all replicas, the accuracy, and times. Losses are not: a
    program may report them in its own way.
    """
    lines = []
    worst: dict[str, float] = defaultdict(float)
    for place, value in expected.items():
        case, name, *rest = place.split("/")
        if name == "losses":
            continue
        seed, got = f"seed {CASES[int(case)][0]}", found.get(place)
        if got is None or got.shape != value.shape:
            shape = "nothing" if got is None else f"shape {got.shape}"
            told = ", ".join([seed, name, *rest])
            lines.append(f"{told}: expected shape {value.shape}, got {shape}")
            continue
        # Not `max`, which would pass over what is not a number.
        with np.errstate(invalid="ignore"):
            off = np.abs(got - value).max() / (np.abs(value).max() or 1.0)
        what = f"replica {rest[0]}" if name == "weights" else name
        key = f"{seed}, {what}"
        worst[key] = float(np.fmax(worst[key], off)) if np.isfinite(off) else np.inf
    if lines or any(off > SAME for off in worst.values()):
        for key, off in worst.items():
            lines.append(f"{key}: " + (f"off by {off:.1e}" if off > SAME else "right"))
        return tuple(lines)
    return ()


def judge(outcome: Outcome, expected: Results) -> Grade:
    """Grade how a program ended."""
    if outcome.verdict != "ran":
        lines = outcome.output.strip().splitlines()
        return Grade(outcome.verdict, tuple(line[:200] for line in lines[-24:]))
    lines = list(compare(outcome.results, expected))
    return Grade("wrong" if lines else "right", tuple(lines))


def correct(fault: Fault, cases: tuple[str, ...] = CASES) -> Results:
    """Run the repaired program; its first backend speaks for all.

    Raises `RuntimeError` where it does not run, as without its framework.
    """
    outcome = run(fault.program(fault.backends()[0], fault.fix), fault.limit, cases)
    if outcome.verdict != "ran":
        raise RuntimeError(outcome.output)
    return outcome.results
