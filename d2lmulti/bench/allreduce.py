"""How fast does `allreduce` move bytes in one process, beside NumPy and the machine?

The same plan is run in turn by NumPy alone, by `allreduce` on a backend's tensors, and
as plain copies of the same bytes, which is the limit of the machine's memory.
Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..backends import get_backend
from ..comm.collectives import allreduce
from ..plans.allreduce import ALLREDUCE
from .timing import Timing, take_turns

Parts = tuple[np.ndarray, np.ndarray, bool]  # target, source, add


def bench_allreduce(
    backend: str | None = None,
    algorithm: str = "ring",
    ranks: int = 4,
    megabytes: int = 16,
    repeats: int = 15,
) -> dict[str, Timing]:
    """Time an all-reduce of float32 vectors of `megabytes` MiB on simulated devices.

    Ratios are to NumPy doing the same additions and copies.
    """
    B = get_backend(backend)
    length = megabytes * 2**18
    zeros = np.zeros(length, "float32")  # they stay zero, however often summed up
    data = [B.array(zeros) for _ in range(ranks)]
    vectors = [zeros + 0 for _ in range(ranks)]

    def ours() -> None:
        allreduce(data, algorithm)
        B.synchronize()

    return take_turns(
        {
            "NumPy": _same_work(_numpy_parts(algorithm, vectors)),
            f"allreduce, {algorithm}": ours,
            "memory copies": _plain_copies(_numpy_parts(algorithm, vectors)),
        },
        repeats,
        warm_up=4,
    )


def _numpy_parts(algorithm: str, vectors: list[np.ndarray]) -> list[Parts]:
    return [
        (
            vectors[t.target][t.target_first : t.target_first + t.length],
            vectors[t.source][t.source_first : t.source_first + t.length],
            t.add,
        )
        for this_round in ALLREDUCE[algorithm](len(vectors), len(vectors[0]))
        for t in this_round
    ]


def _same_work(transfers: list[Parts]) -> Callable[[], None]:
    def run() -> None:
        for target, source, add in transfers:
            if add:
                np.add(target, source, out=target)
            else:
                np.copyto(target, source)

    return run


def _plain_copies(transfers: list[Parts]) -> Callable[[], None]:
    def run() -> None:
        for target, source, _ in transfers:  # even a sum must be written
            np.copyto(target, source)

    return run
