"""Ours beside the frameworks' own, in one run and in turn: ratios, and the copy limit.

The numbers are those of `python -m d2lmulti bench allreduce` and `bench engines`;
Horovod is timed in turn with shared memory in one launch more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from d2lmulti.backends import framework_names, get_backend
from d2lmulti.bench import engines as bench
from d2lmulti.bench.allreduce import bench_allreduce
from d2lmulti.bench.engines import bench_engines
from d2lmulti.comm.engines.shared_memory import connect
from d2lmulti.comm.group import Group
from d2lmulti.comm.process_group import started
from d2lmulti.comm.process_info import process_info
from d2lmulti.launch import launch
from d2lmulti.models.lenet import LENET

from .markdown import table

TITLE = "Beside the frameworks' own, and beside the limit"
REPEATS = 7
ALONE, TWO, HOROVOD = "allreduce", "engines", "horovod"
OWN = {"torch": "DDP", "paddle": "`paddle.DataParallel`"}
Row = dict[str, Any]


def rows(quick: bool, step: Any) -> list[Row]:
    """Time everything in turn; ratios are medians of ratios turn by turn."""
    found: list[Row] = []
    for name in ("numpy",) if quick else framework_names():
        step(f"all-reduce in one process, {name}")
        few = {"megabytes": 1, "repeats": 2} if quick else {"repeats": REPEATS}
        timings = bench_allreduce(name, **few)
        found += [_row(ALONE, name, c, *timing) for c, timing in timings.items()]
    if quick:
        return found
    for name in framework_names():
        step(f"two workers, {name}")
        timings = bench_engines(name, REPEATS)
        # Horovod is timed below, beside another engine.
        found += [_row(TWO, name, c, *timing) for c, timing in timings.items()
                  if "horovod" not in c]  # fmt: skip
    for name in ("torch", "mxnet"):
        step(f"two workers, Horovod, {name}")
        run = launch(beside_horovod, 2, REPEATS, engine="horovod", backend=name,
                     timeout=250)  # fmt: skip
        found += [_row(HOROVOD, name, c, *timing)
                  for c, timing in run.values[0].items()]  # fmt: skip
    return found


def _row(part: str, backend: str, candidate: str, seconds: float, ratio: float) -> Row:
    return {"part": part, "backend": backend, "candidate": candidate,
            "seconds": seconds, "ratio": ratio}  # fmt: skip


def beside_horovod(repeats: int) -> dict[str, tuple[float, float]]:
    """Time Horovod and shared memory in turn; called in each of two processes."""
    group, B = started(), get_backend()
    (rank,) = group.local_ranks
    bench._pin(rank)
    shared = Group(group.size, group.local_ranks, connect(process_info()))
    groups = {"horovod": group, "shared_memory": shared}
    turns = partial(bench._take_turns, group=group, repeats=repeats)
    # To one worker; and, because Horovod is the peer, to that over Horovod.
    training = bench._training(B, groups, LENET, 256, 3)
    found = turns(training, peer=f"{LENET.name}, two, horovod")
    for kilobytes in bench.KILOBYTES:
        found |= turns(bench._summing(B, groups, kilobytes))
    return found


def wrong(rows: list[Row]) -> list[str]:
    """List what cannot be a time. A ratio is what it is: none is wrong."""
    return [f"{r['candidate']}: {r}" for r in rows
            if not (r["seconds"] > 0 and r["ratio"] > 0)]  # fmt: skip


def show(rows: list[Row]) -> str:
    """Lay out steps of training, all-reduces between processes, and in one process."""
    between = [
        "A step of training by two workers, each on a core of its own: the time over "
        "that of one worker with the whole batch (0.5 would be twice as quick), and "
        "over that of the framework's own wrapper in the same run. Two that do not "
        "talk are the machine's limit.",
        table(
            ["", "backend", "ms", "to one worker", "to its own"], _steps(rows), words=2
        ),
    ]
    sizes = [f"{kb} KB" for kb in bench.KILOBYTES]
    between += [
        "An all-reduce of two processes: the time over that of the first line of its "
        "block, which is the framework's own (gloo in PyTorch and Paddle; of MXNet, "
        "shared memory).",
        table(["", "backend", *sizes], _sums(rows), words=2),
    ]
    alone = [
        "An all-reduce among four simulated devices of one process, 16 MiB each, over "
        "the same additions and copies written in NumPy alone; and two that are so "
        "short that our own calls count.",
        table(["", "backend", "ms", "ratio"], [
            [r["candidate"], r["backend"], f"{r['seconds'] * 1e3:.3g}",
             f"{r['ratio']:.2f}"]
            for r in rows if r["part"] == ALONE
        ], words=2),
    ]  # fmt: skip
    return "\n\n".join(between + alone if _steps(rows) else alone)


def _steps(rows: list[Row]) -> list[list[str]]:
    own = {}
    for r in rows:
        name, marker, _ = r["candidate"].partition(", to its own")
        if marker:
            own[r["part"], r["backend"], name] = r["ratio"]
    found = []
    for r in rows:
        name = r["candidate"]
        if r["part"] == ALONE or "all-reduce" in name or ", to its own" in name:
            continue
        key = (r["part"], r["backend"], name)
        peer = OWN.get(r["backend"], "") if r["part"] == TWO else "Horovod"
        beside = f"{own[key]:.2f} ({peer})" if key in own else "-"
        label = name.replace("its own", peer)
        found.append([label, r["backend"], f"{r['seconds'] * 1e3:.1f}",
                      f"{r['ratio']:.2f}", beside])  # fmt: skip
    return found


def _sums(rows: list[Row]) -> list[list[str]]:
    lines: dict[tuple[str, str, str], list[str]] = {}
    for r in rows:
        if r["part"] != ALONE and r["candidate"].startswith("all-reduce "):
            _, _, name = r["candidate"].partition(", ")
            line = lines.setdefault((r["part"], name, r["backend"]), [])
            line.append(f"{r['ratio']:{'.2f' if r['ratio'] >= 0.1 else '.2g'}}")
    return [[name, backend, *line] for (_, name, backend), line in lines.items()]
