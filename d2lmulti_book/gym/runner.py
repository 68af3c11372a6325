"""Run a learner's program apart from the grader: `python -m d2lmulti_book.gym.runner`.

Arguments: the program, the file for its results, the seconds that it may take, and
cases as seed:workers (without workers, the program's own number). What `train` returns
is written as npz, each array by the case and its place, such as `0/weights/1/0`. After
the time limit the stack of each thread goes to stderr; the process ends with `HUNG`.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

HUNG = 75


def flat(value: Any, place: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays and numbers in dictionaries and lists with their places."""
    inner: Iterable[tuple[object, Any]]
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        yield place, np.asarray(value, "float64")
        return
    for key, part in inner:
        yield from flat(part, f"{place}/{key}")


def report_stacks(program: str) -> None:
    """Print in which lines of the program its threads are, and end the process."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident in frames:
            stack = traceback.extract_stack(frames[thread.ident])
            lines = traceback.format_list([f for f in stack if f.filename == program])
            sys.stderr.write(f"{thread.name} is in\n{''.join(lines)}")
    sys.stderr.flush()
    os._exit(HUNG)


def run_cases(train: Callable[..., Any], cases: Iterable[str]) -> dict[str, np.ndarray]:
    """Call `train` for each case and return its arrays by case and place."""
    found: dict[str, np.ndarray] = {}
    for number, case in enumerate(cases):
        found.update(flat(train(*map(int, case.split(":"))), str(number)))
    return found


def main(program: str, results: str, limit: str, *cases: str) -> None:
    """Run `train` of a program for each case and write what it returns."""
    train = runpy.run_path(program)["train"]
    # A thread cannot print while a framework's own code keeps the interpreter busy.
    faulthandler.dump_traceback_later(float(limit) + 5, exit=True)
    watch = threading.Timer(float(limit), report_stacks, [program])
    watch.daemon = True
    watch.start()
    found = run_cases(train, cases)
    watch.cancel()
    np.savez(results, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
