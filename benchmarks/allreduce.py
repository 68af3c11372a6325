"""How fast does `allreduce` move bytes in one process, beside NumPy and the machine?

The same plan is run in turn by NumPy alone, by `allreduce` on a backend's tensors, and
as plain copies of the same bytes, which is the limit of the machine's memory.
Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from d2lmulti.backends import get_backend
from d2lmulti.comm.group import allreduce
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import even_edges

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

    Ratios are to NumPy doing the same additions and copies. Beside it stand two that
    are over in microseconds, so that our own calls count: a ring of 100,000 elements on
    eight devices, to the same ring written with NumPy, and one element on two, to the
    framework's two lines.
    """
    B = get_backend(backend)

    def ours(algorithm: str, ranks: int, length: int) -> Callable[[], None]:
        data = [B.array(np.zeros(length, "float32")) for _ in range(ranks)]

        def run() -> None:
            allreduce(data, algorithm)
            B.synchronize()

        return run

    zeros = np.zeros(megabytes * 2**18, "float32")  # zeros stay zero when summed up
    transfers = _numpy_parts(algorithm, [zeros + 0 for _ in range(ranks)])
    timings = take_turns(
        {
            "NumPy": _same_work(transfers),
            f"allreduce, {algorithm}": ours(algorithm, ranks, len(zeros)),
            "memory copies": _plain_copies(transfers),
        },
        repeats,
        warm_up=4,
    )
    vectors = [np.zeros(100_000, "float32") for _ in range(8)]
    timings |= take_turns(
        {
            "ring of 100,000 on 8, NumPy": partial(ring_in_numpy, vectors),
            "ring of 100,000 on 8, ours": ours("ring", 8, 100_000),
        },
        20 * repeats,
        warm_up=2,
    )
    x, y = (B.array(np.zeros(1, "float32")) for _ in range(2))
    if not hasattr(x, "__setitem__"):
        return timings

    # In place: Paddle's `x += y` would make a new tensor.
    add_ = x.__iadd__ if hasattr(x, "__iadd__") else x.add_

    def two_lines() -> None:
        add_(y)
        y[:] = x

    return timings | take_turns(
        {
            "one element on 2, two lines": two_lines,
            "one element on 2, ours": ours("star", 2, 1),
        },
        2 * repeats,
        calls=100,  # one call is shorter than the clock can tell
    )


def ring_in_numpy(vectors: list[np.ndarray]) -> None:
    """Sum up equally long vectors as one would write the ring in NumPy, in place."""
    n = len(vectors)
    edges = even_edges(len(vectors[0]), n).tolist()
    for step in range(1, n):
        for i in range(n):
            part, right = (i - step) % n, vectors[(i + 1) % n]
            first, last = edges[part], edges[part + 1]
            right[first:last] += vectors[i][first:last]
    for step in range(n - 1):
        for i in range(n):
            part = (i - step) % n
            first, last = edges[part], edges[part + 1]
            vectors[(i + 1) % n][first:last] = vectors[i][first:last]


def _numpy_parts(algorithm: str, vectors: list[np.ndarray]) -> list[Parts]:
    parts: list[Parts] = []
    for this_round in ALLREDUCE[algorithm](len(vectors), len(vectors[0])):
        rows: list[Parts] = []
        for i, (source, here, target, there, add) in enumerate(this_round.slices):
            sent = vectors[source][here]
            if i in this_round.read_after_write:
                kept = np.empty_like(sent)
                parts.append((kept, sent, False))
                sent = kept
            rows.append((vectors[target][there], sent, add))
        parts += rows
    return parts


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
