"""Engines side by side: one worker against two, and all-reduce against the limit.

Two processes take turns with all candidates in one run, each with one thread, and while
they train, on a core of its own. Everything is a ratio to the first candidate of its
group of rows.
Chapter: *built_in*.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend, Tensor
from d2lmulti.comm.devices import Device
from d2lmulti.comm.group import Group, allreduce, local_group
from d2lmulti.files import progress
from d2lmulti.models.networks import LENET, Model, initial_mlp, mlp
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.parallel.data import get_params, train_batch
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import ENGINES, process_info, started

from .timing import Timing, compare_times

WORKERS = 2
KILOBYTES = (4, 64, 1024, 4096, 16384, 65536)
ENGINES_OF = {
    "torch": ("torch", "horovod"),
    "paddle": ("paddle",),
    "mxnet": ("shared_memory", "horovod"),
    "numpy": ("shared_memory",),
}
_PEERS = ("torch", "paddle")  # engines whose framework has a step of its own
_CPU = Device("cpu")

Candidate = tuple[Callable[[], object], bool]  # what to run, and whether on rank 0 only


def bench_engines(backend: str | None = None, repeats: int = 7) -> dict[str, Timing]:
    """Time training steps and all-reduces across two processes of this machine.

    All run on the CPU, also where there are GPUs. Ratios of training are to one worker
    on one core, and, where it says so, to the framework's own (DDP); those of
    all-reduce to the first candidate of the same size. Raises `BackendNotInstalled`,
    `ProcessFailed`.
    """
    name = get_backend(backend).name
    engines = [e for e in ENGINES_OF[name] if e != "horovod" or find_spec("horovod")]
    timings: dict[str, Timing] = {}
    for engine in engines:
        found = on_two_cores(measure, engine, name, repeats, 100 + 20 * repeats)
        for candidate, timing in found.items():
            timings.setdefault(candidate, timing)
    return timings


def on_two_cores(
    measure: Callable[[int], dict[str, Timing]],
    engine: str,
    backend: str,
    repeats: int,
    timeout: float = 400,
) -> dict[str, Timing]:
    """Return what `measure(repeats)` returns on rank 0 of two processes."""
    with progress(1, " engines", f"{backend} on {engine}, two workers") as bar:
        run = launch(measure, WORKERS, repeats, engine=engine, backend=backend,
                     timeout=timeout, gpus=False)  # fmt: skip
        bar.update(1)
    return run.values[0]


def measure(repeats: int) -> dict[str, Timing]:
    """Time everything on the engine of this process; called in each of them."""
    group, B = started(), get_backend()
    if group is None:
        return {}
    groups = {group.engine.name: group}
    if group.engine.name not in ("shared_memory", "horovod"):
        module = import_module("d2lmulti.processes.shared_memory")
        both = Group(group.size, group.local_ranks, module.connect(process_info()))
        groups["shared_memory"] = both
    sums: dict[str, Timing] = {}
    # On one core, gloo's thread and the one that waits for it would take turns of 3 ms.
    for kilobytes in KILOBYTES:
        candidates = summing(B, groups, kilobytes)
        sums |= take_turns(candidates, group, repeats, calls_of(kilobytes))
    pin(group.local_ranks[0])
    timings: dict[str, Timing] = {}
    for model, batch, steps in ((LENET, 256, 3), (DEEP, 2048, 1)):
        steps_of = training(B, groups, model, batch)
        peer = f"{model.name}, two, its own"
        timings |= take_turns(steps_of, group, repeats, steps, peer)
    return timings | sums


def calls_of(kilobytes: int) -> int:
    """Return how often an all-reduce of a size is called between clock readings."""
    return max(1, 256 // kilobytes)


def draw(
    B: Backend, group: Group, model: Model, shape: Sequence[int], batch: int
) -> tuple[list[Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Draw weights and a batch of ten classes; return them, and this rank's part."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(batch, *shape)).astype("float32")
    y = rng.integers(0, 10, batch)
    start = [B.array(p.astype("float32")) for p in model.initial(rng)]
    own_rows = slice(group.local_ranks[0], None, group.size)
    return start, (B.array(X), B.array(y)), (B.array(X[own_rows]), B.array(y[own_rows]))


def training(
    B: Backend, groups: dict[str, Group], model: Model, batch: int
) -> dict[str, Candidate]:
    """Return one training step of every candidate, on one worker and on two."""
    first = next(iter(groups.values()))
    start, whole, part = draw(B, first, model, (1, 28, 28), batch)

    def ours(group: Group, X: Tensor, y: Tensor, **how: Any) -> Callable[[], object]:
        params = get_params(start, _CPU)
        return partial(train_batch, X, y, [params], [_CPU], 1e-4, model=model,
                       group=group, n=batch, **how)  # fmt: skip

    alone = ours(local_group(1), *whole)
    half = ours(local_group(1), *part)
    apart = ours(local_group(1), *part)
    candidates: dict[str, Candidate] = {
        f"{model.name}, one worker": (alone, True),
        f"{model.name}, one worker, half the batch": (half, True),
        f"{model.name}, two that never communicate": (apart, False),  # the upper bound
    }
    for name, group in groups.items():
        how = {"algorithm": "native", "reducer": reduce_in_buckets}
        run = ours(group, *part, **how)
        candidates[f"{model.name}, two, {name}"] = run, False
    name = next(iter(groups))
    if name in _PEERS:
        module = import_module(f"benchmarks.{ENGINES[name]}_peers")
        theirs = module.peer_step(partial(model.forward, B), start, *part, 1e-4, batch)
        candidates[f"{model.name}, two, its own"] = theirs, False
    return candidates


def summing(
    B: Backend, groups: dict[str, Group], kilobytes: int
) -> dict[str, Candidate]:
    """Return an all-reduce of every engine, and a copy in memory of the same size."""
    x = B.array(np.zeros(kilobytes * 256, "float32"))
    host = np.zeros(kilobytes * 256, "float32")
    copy = host.copy()
    candidates: dict[str, Candidate] = {}
    for name, group in groups.items():
        label = f"all-reduce {kilobytes} KB, {name}"
        candidates[f"{label}, native"] = partial(allreduce, [x], "native", group), False
        if group.engine.point_to_point:
            ring = partial(allreduce, [x], "ring", group)
            candidates[f"{label}, our ring"] = ring, False
    limit = partial(np.copyto, copy, host)
    candidates[f"all-reduce {kilobytes} KB, memory copy"] = limit, False
    return candidates


def take_turns(
    candidates: dict[str, Candidate],
    group: Group,
    repeats: int,
    calls: int = 1,
    peer: str = "",
) -> dict[str, Timing]:
    """Time the candidates in turn; see `seconds_in_turn`.

    The ratios are to the first candidate. If `peer` is among them, a second row for
    each of our engines gives the ratio to it.
    """
    seconds = seconds_in_turn(candidates, group, repeats, calls)
    base = next(iter(seconds.values()))
    timings = {name: compare_times(times, base) for name, times in seconds.items()}
    if peer in seconds:
        ours = [name for name in seconds if ", two, " in name and name != peer]
        label = peer.rpartition(", ")[2]
        for name in ours:
            timings[f"{name}, to {label}"] = compare_times(seconds[name], seconds[peer])
    return timings


def seconds_in_turn(
    candidates: dict[str, Candidate], group: Group, repeats: int, calls: int = 1
) -> dict[str, list[float]]:
    """Return the seconds of one call; both ranks start each candidate together."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    B = get_backend()
    token = B.array(np.zeros(1, "float32"))
    for repetition in range(repeats + 1):
        for name, (run, alone) in candidates.items():
            allreduce([token], "native", group)
            began = time.perf_counter()
            if group.leader or not alone:
                for _ in range(calls):
                    run()
            B.synchronize()
            if repetition:  # the first is a warm-up
                seconds[name].append((time.perf_counter() - began) / calls)
    return seconds


def pin(rank: int) -> None:
    """Keep all threads of this process on one core, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})


def _forward(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    first, middle, last = params[:2], params[2:4], params[4:]
    return mlp(B, [*first, *list(middle) * 32, *last], B.avg_pool2d(X, 4))


# One matrix, used 32 times: 2.1 million multiplications an example, forwards alone, and
# 81,000 numbers to send. Bound by computing.
_WIDTHS = (49, 256, 256, 10)
DEEP = Model("deep", partial(initial_mlp, widths=_WIDTHS), _forward, _forward)
