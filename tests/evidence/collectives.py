"""Every collective, against NumPy's sums, and between processes against one process.

In one process small integers must come out exactly in every dtype, and normal numbers
within rounding in float64; between processes every bit must be that of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from processes import asked

import d2lmulti
from d2lmulti.backends import DTYPES, backend_names, get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.group import local_group
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import started

from .strategies import ENGINES, KVSTORE, ONE

RANKS, LENGTHS = (1, 2, 3, 4, 5, 7, 8), (0, 1, 2, 10, 1003)
LIMIT = 1e-14  # of the sum of all absolute values
Row = dict[str, Any]
Call = tuple[str, Callable[[list], list], np.ndarray]  # name, what to call, the result


def calls(values: np.ndarray) -> Iterator[Call]:
    """Give every collective on a vector a rank, and what each rank should have then."""
    n, length = values.shape
    ops = {"sum": values.sum(0, dtype=values.dtype), "max": values.max(0)}
    for name in (*ALLREDUCE, "native"):
        for op, want in ops.items():

            def reduced(xs: list, name: str = name, op: str = op) -> list:
                d2lmulti.allreduce(xs, name, op=op)
                return xs

            yield f"all-reduce, {name}", reduced, [want] * n
    for root in {0, n - 1}:

        def copied(xs: list, root: int = root) -> list:
            d2lmulti.broadcast(xs, root)
            return xs

        def summed(xs: list, root: int = root) -> list:
            d2lmulti.reduce(xs, root)
            return xs[root : root + 1]

        yield "broadcast", copied, [values[root]] * n
        yield "reduce", summed, [ops["sum"]]
    parts = [ops["sum"][slice(*bounds)] for bounds in even_bounds(length, n)]
    yield "reduce-scatter", d2lmulti.reduce_scatter, parts
    yield "all-gather", d2lmulti.allgather, [values.reshape(-1)] * n
    if length % n == 0:

        def swapped(xs: list) -> list:
            d2lmulti.alltoall(xs)
            return xs

        blocks = values.reshape(n, n, -1).transpose(1, 0, 2)
        yield "all-to-all", swapped, [block.reshape(-1) for block in blocks]


def in_one_process(
    backend: str, ranks: Sequence[int] = RANKS, lengths: Sequence[int] = LENGTHS
) -> list[Row]:
    """Make every call with every number of ranks, length and dtype."""
    B, found = get_backend(backend), {}
    held = [d for d in DTYPES if d != "bool" and not refused(B, d)]
    for n in ranks:
        for length in lengths:
            rng = np.random.default_rng([n, length])
            whole = rng.integers(0, 4, (n, length))
            for dtype in ["normal", *held]:
                values = rng.normal(size=(n, length)) if dtype == "normal" else whole
                for name, call, wants in calls(values):
                    at = found.setdefault(name, Row(calls=0, wrong=0, difference=0.0))
                    at["calls"] += 1
                    held_as = "float64" if dtype == "normal" else dtype
                    got = call([asked.as_dtype(B, x, held_as) for x in values])
                    for x, want in zip(got, wants, strict=True):
                        judge(B, at, x, want, held_as, dtype == "normal", values)
    tried = {"dtypes": len(held), "ranks": ranks, "lengths": lengths}
    return [{"engine": ONE, "backend": backend, "collective": name, **at, **tried}
            for name, at in found.items()]  # fmt: skip


def judge(
    B: Backend, at: Row, x: Any, want: np.ndarray, dtype: str, rough: bool,
    values: np.ndarray,
) -> None:  # fmt: skip
    """Compare a result with NumPy's: within rounding, or to the last bit."""
    got = B.numpy(x)
    if rough and want.size and got.shape == want.shape:
        scale = np.abs(values).sum(0).max()
        off = float(np.abs(got - want).max() / scale)
        at["difference"] = max(at["difference"], off)
    elif got.tobytes() != B.numpy(asked.as_dtype(B, want, dtype)).tobytes():
        at["wrong"] += 1


def refused(B: Backend, dtype: str) -> bool:
    """Tell whether a backend does not hold a dtype."""
    return bool(asked.invalid(lambda: B.zeros((1,), dtype)))


def between_processes() -> tuple[list[str], int]:
    """Tell which results differ from those of one process; called in each process."""
    group, B = started(), get_backend()
    n, messages = group.size, group.engine.point_to_point
    differ, made = asked.compared(B, group, n, messages)
    if messages:
        alone = asked.every_dtype(B, local_group(n), n)
        mine = asked.every_dtype(B, group, n)
        differ += [name for name, bits in mine.items() if alone[name] != bits]
        made += len(mine)
    return differ, made


def collectives(step: Any) -> list[Row]:
    """Try every collective on every engine and backend."""
    found: list[Row] = []
    for backend in backend_names():
        step(f"collectives in one process, {backend}")
        found += in_one_process(backend)
    for engine, (title, backends) in ENGINES.items():
        for backend in backends if engine not in (ONE, KVSTORE) else ():
            for n in (2, 3):
                step(f"collectives, {title}, {backend}, {n} ranks")
                run = launch(between_processes, n, engine=engine, backend=backend)
                differ = sorted({name for each, _ in run.values for name in each})
                made = sum(made for _, made in run.values)
                found.append({"engine": engine, "backend": backend, "ranks": n,
                              "results": made, "differ": differ})  # fmt: skip
    return found


def is_no_sum(row: Row) -> bool:
    """Tell whether a row is no sum, or has not the bits of one process."""
    return bool(
        row.get("wrong") or row.get("differ") or row.get("difference", 0) > LIMIT
        or not (row.get("calls") or row.get("results"))
    )  # fmt: skip
