"""When does the last bucket arrive? Communication behind the backward pass, modelled.

One network, one bucket at a time: a bucket begins when it is ready and the one before
it has arrived. What remains after the backward pass is all that a step waits for.
Chapter: *allreduce*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from d2lmulti.checks import check_count, check_list, check_number, check_positive
from d2lmulti.errors import InvalidInput
from d2lmulti.plans.rounds import Round


def plan_seconds(
    rounds: Iterable[Round], itemsize: int, start_up: float, bytes_per_second: float
) -> float:
    """Seconds a plan takes where every rank sends and receives at one rate each.

    A rank sends its messages of a round one after another, and receives as many at the
    same time; each costs the start-up time and its bytes. The slowest ends the round.
    """
    check_count("itemsize", itemsize, max=64)
    check_number("start_up", start_up, min=0)
    if bytes_per_second is not math.inf:
        check_positive("bytes_per_second", bytes_per_second)
    seconds = 0.0
    for r in rounds:
        slowest = 0.0
        for end in (r.source, r.target):
            moved = np.bincount(end, weights=r.length) * itemsize
            times = np.bincount(end) * start_up + moved / bytes_per_second
            slowest = max(slowest, float(times.max()))
        seconds += slowest
    return seconds


def spans(ready: Sequence[float], costs: Sequence[float]) -> list[tuple[float, float]]:
    """Give (begin, end) of every bucket, in the order in which they are reduced.

    `ready[i]` is when the last gradient of bucket i is there, `costs[i]` what its
    all-reduce takes, in seconds.

    >>> spans([1.0, 2.0, 3.0], [1.5, 1.0, 0.25])
    [(1.0, 2.5), (2.5, 3.5), (3.5, 3.75)]
    """
    for name, times in (("ready", ready), ("costs", costs)):
        for time in check_list(name, times, "seconds, one a bucket", min_length=0):
            check_number(name, time, min=0)
    if len(ready) != len(costs):
        raise InvalidInput(
            f"expected one cost for each of {len(ready)} buckets, got {len(costs)}"
        )
    out: list[tuple[float, float]] = []
    free = 0.0
    for when, cost in zip(ready, costs, strict=True):
        begin = max(when, free)
        free = begin + cost
        out.append((begin, free))
    return out
