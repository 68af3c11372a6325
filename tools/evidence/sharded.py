"""Sharded states beside data parallelism and `fully_shard`: ratios of one run.

The numbers are those of `python -m d2lmulti bench sharded`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.sharded import bench_sharded
from d2lmulti.backends import framework_names

TITLE = "Speed of sharded training"
SOURCES = ("d2lmulti", "tools/evidence/sharded.py")
REPEATS = 15
Row = dict[str, Any]


def rows(quick: bool, step: Any) -> list[Row]:
    """Time every candidate in turn between two processes of every framework."""
    found: list[Row] = []
    for name in ("torch",) if quick else framework_names():
        step(f"two workers, {name}")
        for candidate, timing in bench_sharded(name, 2 if quick else REPEATS).items():
            found.append({"backend": name, "candidate": candidate, **timing._asdict()})
    return found


def wrong(rows: list[Row]) -> list[str]:
    """List what cannot be a time. A ratio is what it is: none is wrong."""
    return [f"{r['candidate']}: {r}" for r in rows
            if not (r["seconds"] > 0 and r["ratio"] > 0)]  # fmt: skip
