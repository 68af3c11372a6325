"""Benchmarks: ours against the limit or the peer, side by side in one run, as ratios.

The candidates take turns step by step, so that a drift of the machine's speed hits all
of them alike; the median of the step-by-step ratios is what counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ..backends import get_backend
from ..comm.devices import devices
from ..errors import several
from ..models.lenet import LENET
from ..parallel.data import get_params, train_batch


class Timing(NamedTuple):
    """Median seconds of one candidate, and its ratio to the first candidate."""

    seconds: float
    ratio: float


def take_turns(
    candidates: Mapping[str, Callable[[], None]], repeats: int, warm_up: int = 1
) -> dict[str, Timing]:
    """Time the candidates in turn, `repeats` times each; ratios are to the first.

    Each runs `warm_up` times untimed before it is timed: a candidate whose tensors are
    in the cache because its neighbour works on them too would win for nothing.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            for _ in range(warm_up):
                run()
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    base = next(iter(seconds.values()))
    return {name: beside(times, base) for name, times in seconds.items()}


def beside(times: Sequence[float], base: Sequence[float]) -> Timing:
    """Give the median of the times, and of their ratios turn by turn."""
    return Timing(
        median(times), median(a / b for a, b in zip(times, base, strict=True))
    )


def bench_devices(
    backend: str | None = None, batch_size: int = 256, repeats: int = 15
) -> dict[str, Timing]:
    """Time a LeNet step on 1, 2 and 4 simulated devices with the same whole batch.

    The work is the same, so a ratio of 1 means that simulating costs nothing.
    """
    B = get_backend(backend)
    rng = np.random.default_rng(0)
    X = B.array(rng.normal(size=(batch_size, 1, 28, 28)).astype("float32"))
    y = B.array(rng.integers(0, 10, batch_size))
    start = [B.array(p.astype("float32")) for p in LENET.initial(rng)]

    def step_on(k: int) -> Callable[[], None]:
        places = devices(k, backend, simulate=True)
        device_params = [get_params(start, info) for info in places]

        def step() -> None:
            train_batch(X, y, device_params, places, lr=0.01)
            B.synchronize()

        return step

    return take_turns({several(k, "device"): step_on(k) for k in (1, 2, 4)}, repeats)
