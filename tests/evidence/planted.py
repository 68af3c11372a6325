"""How far a planted bug moves the weights of the runs that `strategies.py` compares.

    python -m evidence.planted WANT.pickle RESULT.json ENGINE

trains with the library that it finds first, the copy with the bug, and writes the
largest difference of each run from the weights of the library without it.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from d2lmulti.processes.launcher import launch

from . import strategies

ROOT = Path(__file__).resolve().parents[2]

SECONDS = 120  # for the runs of one bug: it may make a rank wait for ever
Found = dict[str, float | str]  # the way to split -> difference, or what was raised


def moved(bugs: list[Any], step: Any) -> dict[str, Found]:
    """Return what each bug does to the weights, two bugs at a time."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        for engine, backend in BACKENDS.items():
            want = {way: strategies.one_device(strategies.model_of(way), backend)
                    for way in sizes(engine)}  # fmt: skip
            (Path(folder) / engine).write_bytes(pickle.dumps(want))

        def one(bug: Any) -> Found:
            step(f"weights with: {bug.name}")
            engine = "shared_memory" if "processes/" in bug.test else strategies.ONE
            with planted(bug) as copy:
                return in_copy(copy, Path(folder) / engine, engine)

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(one, bugs))
    return {bug.name: each for bug, each in zip(bugs, found, strict=True)}


BACKENDS = {strategies.ONE: "torch", "shared_memory": "numpy"}


def sizes(engine: str) -> dict[str, int]:
    """Return the runs of an engine, and the number of ranks of each."""
    found = {}
    for way, options in strategies.ways().items():
        n = prod(options["mesh"].values()) if "mesh" in options else 3
        found[way] = 2 if way == "tensor" else n
    if engine == strategies.ONE:
        return found
    return {w: 3 for w, n in found.items() if n == 3 and w != strategies.SERVER}


@contextmanager
def planted(bug: Any) -> Iterator[Path]:
    """Copy the library and plant the bug there."""
    with tempfile.TemporaryDirectory(prefix="bug-") as folder:
        library = Path(folder) / "d2lmulti"
        shutil.copytree(ROOT / "d2lmulti", library)
        path = library / bug.file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
        yield Path(folder)


def in_copy(copy: Path, want: Path, engine: str) -> Found:
    """Train with the library of a copy, in a process of its own."""
    result = copy / "result.json"
    paths = [copy, ROOT / "tests", ROOT]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "evidence.planted", want, result, engine],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            cwd=copy, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"all": f"no end within {SECONDS} s"}
    if not result.exists():
        return {"all": done.stderr.strip().rpartition("\n")[2]}
    return json.loads(result.read_text(encoding="utf-8"))


def tried(ways: list[str], n: int, backend: str, want: dict[str, Any]) -> Found:
    """Train in each way: the largest difference, or the name of what was raised."""
    found: Found = {}
    for way in ways:
        try:
            replicas = strategies.trained(way, n, backend)
            off = max(strategies.difference(own, want[way]) for own in replicas)
        except Exception as error:
            found[way] = type(error).__name__
        else:
            found[way] = off if math.isfinite(off) else "not finite"
    return found


def main(want_file: str, result: str, engine: str) -> None:
    """Make all runs of an engine and write what came out."""
    want, backend = pickle.loads(Path(want_file).read_bytes()), BACKENDS[engine]
    if engine == strategies.ONE:
        found: Found = {}
        for way, n in sizes(engine).items():
            found |= tried([way], n, backend, want)
    else:
        run = launch(tried, 3, list(want), 3, backend, want, engine=engine,
                     backend=backend, timeout=SECONDS)  # fmt: skip
        found = {way: worst([each[way] for each in run.values]) for way in want}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


def worst(outcomes: list[float | str]) -> float | str:
    """Return the largest difference of all ranks, or what one of them raised."""
    raised = [x for x in outcomes if isinstance(x, str)]
    return raised[0] if raised else max(outcomes)


if __name__ == "__main__":
    main(*sys.argv[1:])
