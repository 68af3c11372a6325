"""Sharded states beside data parallelism and `fully_shard`: ratios of one run.

The numbers are those of `python -m d2lmulti bench sharded`.
"""

from __future__ import annotations

from typing import Any

from d2lmulti.backends import framework_names
from d2lmulti.bench.sharded import bench_sharded

from .markdown import table

TITLE = "Sharded states, beside data parallelism and `fully_shard`"
REPEATS = 5
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


def show(rows: list[Row]) -> str:
    """Lay out a line for each candidate, with its ratios to every peer."""
    peers = ["fully_shard", "fully_shard, recomputes"]
    ratios = {(r["backend"], r["candidate"]): r["ratio"] for r in rows}
    lines = []
    for r in rows:
        backend, name = r["backend"], r["candidate"]
        if ", to " in name:  # shown in the line of what was timed
            continue
        beside = [ratios.get((backend, f"{name}, to {peer}")) for peer in peers]
        lines.append([
            name.replace("fully_shard", "`fully_shard`"), backend,
            f"{r['seconds'] * 1e3:.1f}", f"{r['ratio']:.2f}",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in beside),
        ])  # fmt: skip
    head = ["", "backend", "ms", "to data parallel", "to `fully_shard`",
            "the same, recomputing"]  # fmt: skip
    return table(head, lines, words=2)
