"""Run a learner's program apart from the grader: `python -m d2lmulti_book.gym.runner`.

Arguments: the program, the file for its results, the seconds that it may take, and
cases as seed:workers (without workers, the program's own number). What `train` returns
is written as npz, each array by the case and its place, such as `0/weights/1/0`. After
the time limit the stack of each thread goes to stderr; the process ends with `HUNG`.
It ends with `CRASHED` if the program raises an error; only then stderr has its words.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

HUNG, CRASHED = 75, 70
LARGEST = 10**8  # bytes of a file that a program may write


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


def explain(error: BaseException, program: str) -> str:
    """Describe an error by the lines of the program that led to it."""
    if isinstance(error, SystemExit):
        return f"the program called sys.exit({error.code!r}) before `train` returned"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [i for i, frame in enumerate(frames) if frame.filename == program]
    lines = traceback.format_list(frames[inside[0] :] if inside else [])
    return "".join([*lines, *traceback.format_exception_only(error)])


def main(program: str, results: str, limit: str, *cases: str) -> None:
    """Run `train` of a program for each case and write what it returns."""
    with suppress(ImportError):  # which Windows lacks
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
    try:
        names = runpy.run_path(program)
        if not callable(names.get("train")):
            raise LookupError("expected a function `train(seed, workers)`, found none")
        # A thread cannot print while a framework's own code keeps the interpreter busy.
        faulthandler.dump_traceback_later(float(limit) + 5, exit=True)
        watch = threading.Timer(float(limit), report_stacks, [program])
        watch.daemon = True
        watch.start()
        np.savez(results, **run_cases(names["train"], cases))
    except BaseException as error:
        sys.stderr.write(explain(error, program))
        sys.stderr.flush()
        os._exit(CRASHED)
    os._exit(0)  # threads that the program left behind do not matter any more


if __name__ == "__main__":
    main(*sys.argv[1:])
