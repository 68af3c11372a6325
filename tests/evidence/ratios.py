"""Our times compared with the frameworks', in turn in one run, as ratios.

The numbers are those of `python -m d2lmulti bench allreduce`, `engines`, and `sharded`;
Horovod is timed in turn with shared memory in one launch more.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import engines as bench
from benchmarks.allreduce import bench_allreduce
from benchmarks.sharded import bench_sharded
from benchmarks.timing import Timing
from d2lmulti.backends import framework_names, get_backend
from d2lmulti.comm.group import Group
from d2lmulti.models.networks import LENET
from d2lmulti.processes.process_group import process_info, started
from d2lmulti.processes.shared_memory import connect

REPEATS, BETWEEN = 15, 11  # in one process, and between two
ALONE, TWO, HOROVOD = "allreduce", "engines", "horovod"
Row = dict[str, Any]


def ratios(step: Any) -> list[Row]:
    """Time everything in turn; a ratio is formed in each repetition."""
    found: list[Row] = []
    for name in framework_names():
        step(f"all-reduce in one process, {name}")
        timings = bench_allreduce(name, repeats=REPEATS)
        found += [_row(ALONE, name, c, timing) for c, timing in timings.items()]
    for name in framework_names():
        step(f"two workers, {name}")
        found += _between(TWO, bench.measure, bench.ENGINES_OF[name][0], name)
    for name in ("torch", "mxnet"):
        step(f"two workers, Horovod, {name}")
        found += _between(HOROVOD, beside_horovod, "horovod", name)
    return found


def sharded(step: Any) -> list[Row]:
    """Time sharded states, data parallelism and `fully_shard` in two processes."""
    found: list[Row] = []
    for name in framework_names():
        step(f"two workers that shard, {name}")
        timings = bench_sharded(name, REPEATS)
        found += [_row("sharded", name, c, timing) for c, timing in timings.items()]
    return found


def _between(part: str, measure: Any, engine: str, backend: str) -> list[Row]:
    """Time everything between two processes of an engine."""
    timings = bench.on_two_cores(measure, engine, backend, BETWEEN)
    return [_row(part, backend, c, timing) for c, timing in timings.items()]


def _row(part: str, backend: str, candidate: str, timing: Timing) -> Row:
    names = {"part": part, "backend": backend, "candidate": candidate}
    return names | timing._asdict()


def beside_horovod(repeats: int) -> dict[str, Timing]:
    """Time Horovod and shared memory in turn; called in each of two processes."""
    group, B = started(), get_backend()
    (rank,) = group.local_ranks
    shared = Group(group.size, group.local_ranks, connect(process_info()))
    groups = {"horovod": group, "shared_memory": shared}
    turns = partial(bench.take_turns, group=group, repeats=repeats)
    sums: dict[str, Timing] = {}
    for kilobytes in bench.KILOBYTES:
        candidates = bench.summing(B, groups, kilobytes)
        sums |= turns(candidates, calls=bench.calls_of(kilobytes))
    bench.pin(rank)
    # To one worker; and, because Horovod is the peer, to that over Horovod.
    training = bench.training(B, groups, LENET, 256)
    return turns(training, calls=3, peer=f"{LENET.name}, two, horovod") | sums


def no_time(row: Row) -> bool:
    """Tell whether a row cannot be a time. A ratio is what it is: none is wrong."""
    return not (row["seconds"] > 0 and row["ratio"] > 0)
