"""This machine as a cluster, measured on the spot with NumPy: a core is a device.

The best of several short tries: what the machine can do when nothing else is going on.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable

import numpy as np

from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link

from .hardware import Cluster, Device

_TRIES = 7


def measure() -> Cluster:
    """Measure a matrix product, a copy, and a message between two threads."""
    cores = os.cpu_count() or 1
    n = 512
    a = np.ones((n, n), np.float32)
    product = _best(lambda: a @ a)
    source = np.ones(2**22, np.float32)
    target = np.empty_like(source)
    copy = _best(lambda: np.copyto(target, source))
    if not hasattr(os, "sysconf"):
        raise InvalidInput(
            f"expected a system that tells its memory, got {sys.platform}; name "
            "another cluster, as in get_cluster('2x4090-pcie')"
        )
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    device = Device(
        "core", 2.0 * n**3 / product, 2 * source.nbytes / copy, memory / cores, 1,
        matmul_share=1.0, memory_share=1.0,
    )  # fmt: skip
    link = Link(_message(), source.nbytes / copy)
    return Cluster(
        "this-machine", device, link, link, per_node=cores, nics=cores,
        hops=(link.latency,) * 3, fabric="pcie",
    )  # fmt: skip


def _best(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TRIES):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return max(min(seconds), 1e-9)


def _message(rounds: int = 200) -> float:
    """Half of a round trip of nothing between two threads, in seconds."""
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def answer() -> None:
        for _ in range(rounds):
            back.put(there.get())

    thread = threading.Thread(target=answer)
    thread.start()
    seconds = []
    for i in range(rounds):
        begin = time.perf_counter()
        there.put(i)
        back.get()
        seconds.append(time.perf_counter() - begin)
    thread.join()
    return sorted(seconds)[rounds // 2] / 2
