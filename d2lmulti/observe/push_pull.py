"""When workers pull, compute and push: the order of events on a modeled clock.

The order depends on times and on which workers wait, not on tensors. So it is computed
here, as data; `parallel.parameter_server` executes it with real gradients.
Chapter: *parameter_server*.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_list,
    check_number,
    check_positive,
    invalid,
)
from ..errors import InvalidInput
from .link import Link

MODES = ("sync", "async", "bounded")
MAX_STEPS = 10**8  # of all workers, whose times are in memory


class Event(NamedTuple):
    """A worker reads the weights (pull), or its gradient has arrived (push)."""

    seconds: float
    kind: Literal["pull", "push"]
    worker: int
    batch: int  # number of the mini-batch, from one queue for all workers


def worker_seconds(
    workers: int,
    steps: int,
    seconds: float = 1.0,
    *,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Sample the compute time of each worker on each of its steps: (workers, steps).

    `seconds` is the usual time. `jitter` is the standard deviation of its logarithm;
    worker i of `stragglers` takes `stragglers[i]` times as long. Raises `InvalidInput`
    for no workers, negative times and a straggler that is no worker.
    """
    check_count("workers", workers, max=MAX_RANKS)
    check_count("steps", steps, max=MAX_STEPS // workers)
    check_positive("seconds", seconds)
    check_number("jitter", jitter, min=0, max=20)
    check_count("seed", seed, min=0, max=None)
    stragglers = {} if stragglers is None else stragglers
    for worker, factor in stragglers.items():
        check_count("a straggler", worker, min=0, max=workers - 1)
        check_positive("a straggler's factor", factor)
    normal = np.random.default_rng(seed).standard_normal((workers, steps))
    factors = np.array([stragglers.get(w, 1.0) for w in range(workers)])
    with np.errstate(over="ignore"):  # which raises an error
        return check_times(seconds * factors[:, None] * np.exp(jitter * normal))


def push_pull_events(
    mode: str,
    seconds: np.ndarray,
    batches: int,
    *,
    staleness: int | None = None,
    backups: int = 0,
    server_bytes: Sequence[int] = (0,),
    link: Link | None = None,
) -> Iterator[Event]:
    """Yield the events of a run over `batches` mini-batches, in order of (time, rank).

    Each worker repeatedly pulls, computes for `seconds[worker, step]`, and pushes; the
    next mini-batch goes to the next worker that pulls. `sync`: no worker pulls before
    all have pushed, or all but `backups`; a worker that pushes after that continues at
    once. `async`: no worker waits. `bounded`: a worker that is more than `staleness`
    steps ahead of the slowest waits (stale synchronous parallel: Ho et al., 2013).
    `server_bytes` are the bytes of one push, or pull, by server. Every worker and every
    server has one `link`, with the same bandwidth in both directions, for one message
    at a time. Without a link, messages take no time. Raises `InvalidInput` as
    `check_mode` does, and in `sync` without backups for a number of batches that the
    workers do not divide.
    """
    seconds = check_times(seconds)
    workers = len(seconds)
    check_mode(mode, workers, staleness, backups)
    check_count("batches", batches)
    for size in check_list("server_bytes", server_bytes, "bytes, one number a server"):
        check_count("server_bytes", size, min=0)
    lockstep = mode == "sync" and not backups
    if lockstep and batches % workers:
        raise InvalidInput(
            f"expected a number of batches that {workers} workers divide, got "
            f"{batches}; a synchronous step takes one from every worker"
        )
    if seconds.shape[1] * workers < batches or (
        not lockstep and seconds.shape[1] < batches and workers > 1
    ):
        raise InvalidInput(
            f"expected times for up to {batches} steps of a worker, got "
            f"{seconds.shape[1]}; sample more with worker_seconds(workers, steps)"
        )
    link = Link() if link is None else link
    servers = len(server_bytes)
    latency = link.latency if any(server_bytes) else 0.0
    # Each server has one port to send (get) and one to receive (put): when it is free.
    free = {"get": [0.0] * servers, "put": [0.0] * servers}
    heap = [(0.0, worker, "pull", -1, 0) for worker in range(workers)]
    completed, assigned = [0] * workers, 0
    waiting: set[int] = set()
    version, pulled = 0, [0] * workers  # updates so far, and at each worker's pull
    while heap:
        now, worker, kind, batch, part = heapq.heappop(heap)
        if kind == "pull":
            if assigned == batches:
                continue
            yield Event(now, "pull", worker, assigned)
            heapq.heappush(heap, (now, worker, "get", assigned, 0))
            assigned, pulled[worker] = assigned + 1, version
        elif kind in free and part < servers:
            server = (worker + part) % servers  # workers start at different servers
            if server_bytes[server]:
                start = max(now, free[kind][server])
                now = free[kind][server] = start + server_bytes[server] / link.bandwidth
            heapq.heappush(heap, (now, worker, kind, batch, part + 1))
        elif kind == "get":
            ready = now + latency + float(seconds[worker, completed[worker]])
            heapq.heappush(heap, (ready, worker, "put", batch, 0))
        elif kind == "put":
            heapq.heappush(heap, (now + latency, worker, "push", batch, 0))
        else:
            yield Event(now, "push", worker, batch)
            completed[worker] += 1
            if pulled[worker] < version:  # too late for its update: do not wait
                heapq.heappush(heap, (now, worker, "pull", -1, 0))
                continue
            waiting.add(worker)
            version += mode == "sync" and len(waiting) == workers - backups
            for other in _released(mode, waiting, completed, staleness, backups):
                waiting.remove(other)
                heapq.heappush(heap, (now, other, "pull", -1, 0))


def _released(
    mode: str,
    waiting: set[int],
    completed: Sequence[int],
    staleness: int | None,
    backups: int,
) -> list[int]:
    """Return the waiting workers that may continue."""
    if mode == "sync":
        return sorted(waiting) if len(waiting) == len(completed) - backups else []
    ahead = math.inf if staleness is None else staleness
    return [w for w in sorted(waiting) if completed[w] - min(completed) <= ahead]


def check_times(seconds: Any) -> np.ndarray:
    """Return times (workers, steps); raise unless all are finite and at least 0."""
    times = np.asarray(seconds, dtype=np.float64)
    if (
        times.ndim != 2
        or not times.size
        or not (np.isfinite(times) & (times >= 0)).all()
    ):
        raise invalid(
            "finite times of at least 0 seconds, (workers, steps),",
            seconds,
            "sample them with worker_seconds(workers, steps)",
        )
    return times


def check_mode(mode: str, workers: int, staleness: int | None, backups: int) -> None:
    """Raise unless the mode, the bound on staleness, and the backups fit together."""
    check_choice("mode", mode, MODES)
    check_count("workers", workers, max=MAX_RANKS)
    check_count("backups", backups, min=0, max=workers - 1)
    if backups and mode != "sync":
        raise invalid("no backups unless mode is 'sync'", backups)
    if mode == "bounded":
        hint = "pass how many steps ahead of the slowest a worker may be: staleness=2"
        check_count("staleness", staleness, min=0, hint=hint)
    elif staleness is not None:
        raise invalid("no staleness unless mode is 'bounded'", staleness)
