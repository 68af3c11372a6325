"""Benchmarks: ours against the limit or the peer, side by side in one run, as ratios.

The candidates take turns, so that a drift of the machine's speed affects all of them
alike. A ratio is formed in each repetition; its median and its quartiles are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Median seconds of one call, its ratio to the first candidate, with quartiles."""

    seconds: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    repeats: int


def take_turns(
    candidates: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    calls: int = 1,
) -> dict[str, Timing]:
    """Time the candidates in turn, `repeats` times each; ratios are to the first.

    Each runs `warm_up` times untimed before it is timed: a candidate whose tensors are
    in the cache because its neighbor uses them too would win for nothing. A short
    candidate is called `calls` times between two readings of the clock; its seconds
    are those of one call.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            for _ in range(warm_up):
                run()
            began = time.perf_counter()
            for _ in range(calls):
                run()
            seconds[name].append((time.perf_counter() - began) / calls)
    base = next(iter(seconds.values()))
    return {name: compare_times(times, base) for name, times in seconds.items()}


def compare_times(times: Sequence[float], base: Sequence[float]) -> Timing:
    """Return the median and quartiles of the times and of their paired ratios."""
    _, middle, _ = quartiles(times)
    ratios = quartiles([a / b for a, b in zip(times, base, strict=True)])
    return Timing(middle, ratios[1], (ratios[0], ratios[2]), len(times))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median, and the third quartile."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high
