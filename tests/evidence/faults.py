"""Ranks that are killed or run out of disk: named in seconds, and nothing left.

And runs that are killed again and again, start again from the checkpoint each time, and
end with the bits of a run that nothing happened to.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from processes.dying import dying_run
from processes.failing import ENGINES as VICTIMS
from processes.failing import cases
from processes.test_faults import undisturbed

import d2lmulti
from d2lmulti.backends import get_backend
from d2lmulti.processes.launcher import launch

TIMES, KILLS = 3, {"shared_memory": 5, "torch": 3, "paddle": 3}
Row = dict[str, Any]


def faults(step: Any, engines: Sequence[str] = tuple(VICTIMS)) -> list[Row]:
    """Let every fault happen on every engine, then kill runs that go on."""
    found: list[Row] = []
    for engine in engines:
        for fault, happen in cases(engine).items():
            step(f"{fault}, {engine}")
            outcomes = []
            for _ in range(TIMES):
                with tempfile.TemporaryDirectory(prefix="faults-") as folder:
                    outcomes.append(happen(Path(folder)))
            found.append({
                "engine": engine, "backend": VICTIMS[engine], "fault": fault,
                "times": len(outcomes),
                "seconds": max(outcome.seconds for outcome in outcomes),
                "wrong": [o.wrong for o in outcomes if o.wrong],
            })  # fmt: skip
    for engine in engines:
        if engine in KILLS:
            step(f"{KILLS[engine]} kills, each survived, {engine}")
            found.append(survived(engine, VICTIMS[engine], KILLS[engine]))
    return found


def survived(engine: str, backend: str, kills: int) -> Row:
    """Kill a rank in each attempt but the last; tell what was lost and what is left."""
    digits = d2lmulti.load("digits").first(160)
    data = replace(digits, test_X=digits.test_X[:16], test_y=digits.test_y[:16])
    want, began = undisturbed(get_backend(backend), data), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        path = str(Path(folder) / "run.npz")
        run = launch(dying_run, 2, data, path, kills, engine=engine, backend=backend,
                     restarts=kills)  # fmt: skip
        left = sorted(set(os.listdir(folder)) - {"run.npz"})
    same = run.values == [want, want]  # digests of all weights
    bad = [] if same else ["other weights than undisturbed"]
    bad += [] if run.restarts == kills else [f"only {run.restarts} kills"]
    return {
        "engine": engine, "backend": backend, "restarts": run.restarts,
        "same_bits": same, "seconds": time.monotonic() - began,
        "wrong": bad + ([f"left {', '.join(left)}"] if left else []),
    }  # fmt: skip


def ended_badly(row: Row) -> bool:
    """Tell whether a fault did not end as it should."""
    return bool(row["wrong"])
