"""A data set whose examples take a known amount of work to prepare.

It represents the work of real pipelines on each example: decode a photograph, crop it,
rotate it. A worker process must be able to import it, so it is not in the notebook.
Chapter: *bottlenecks*.
"""

from __future__ import annotations

import os
import time

import numpy as np

from d2lmulti.checks import check_count
from d2lmulti.observe.timeline import Timeline

_LENGTH = 20_000  # values of a pass, which fit in the cache of a core


class SlowData:
    """`examples` vectors of 784 values with labels; `passes` sets the work for each.

    `data[i]` returns X (784,) float32, y int64, and a stamp (3,) float64: the process
    that prepared the example, and its begin and end on `time.perf_counter`. The work is
    that of one thread, the same for every example: random numbers, sampled into the
    same memory, so that processes do not compete for memory bandwidth.
    """

    def __init__(self, examples: int, passes: int = 2) -> None:
        check_count("examples", examples)
        check_count("passes", passes, min=0)
        self.examples, self.passes = examples, passes

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.int64, np.ndarray]:
        begin = time.perf_counter()
        if not 0 <= i < self.examples:
            raise IndexError(i)  # so that `for example in data` ends
        rng = np.random.default_rng(int(i))
        x = rng.standard_normal(784, "float32")
        work = np.empty(_LENGTH)
        for _ in range(self.passes):
            rng.standard_normal(out=work)  # NumPy releases the GIL
        stamp = np.array([os.getpid(), begin, time.perf_counter()])
        return x, np.int64(i % 10), stamp


class Stamps:
    """Adds to a timeline when each batch was prepared, and by which process.

    The process that owns the timeline is the trainer; the others are worker 0, 1, ...
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.names = {os.getpid(): "trainer"}

    def enter(self, stamps: np.ndarray) -> None:
        """Add the stamps (n, 3) of one batch, which one process has prepared."""
        process = int(stamps[0, 0])
        name = self.names.setdefault(process, f"worker {len(self.names) - 1}")
        begin, end = stamps[0, 1], stamps[-1, 2]
        start = self.timeline.start
        self.timeline.add(name, "prepare", begin - start, end - start)
