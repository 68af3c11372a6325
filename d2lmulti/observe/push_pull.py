"""When workers pull, compute and push: the order of events on a modeled clock.

The order depends on times and on who must wait for whom, never on a tensor. So it is
computed here, as data; `parallel.parameter_server` plays it with real gradients.
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
MAX_STEPS = 10**8  # of all workers: their times lie in memory


class Event(NamedTuple):
    """A worker reads the weights (pull), or its gradient is in (push)."""

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
    """Sample how long each worker computes in each step: an array (workers, steps).

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
    with np.errstate(over="ignore"):  # which is refused
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

    Each worker pulls, computes for `seconds[worker, step]` and pushes, again and again;
    the next mini-batch goes to the next worker that pulls. `sync`: nobody pulls before
    all have pushed, or all but `backups`; who pushes after that continues at once.
    `async`: nobody waits. `bounded`: who is more than `staleness`
    steps ahead of the slowest waits (stale synchronous parallel: Ho et al., 2013).
    `server_bytes` are the bytes of one push, or pull, by server. Every worker and every
    server has one `link`, as fast in as out, for one message at a time; the next one
    waits. Without it messages take no time.
    Raises `InvalidInput` for what `check_mode` rejects, and in
    `sync` without backups for a number of batches that the workers do not divide.
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
    # One port a server for what it sends (get), and one for what it receives (put).
    free = {"get": [0.0] * servers, "put": [0.0] * servers}  # from when each port is
    heap = [(0.0, worker, "pull", -1, 0) for worker in range(workers)]
    done, taken = [0] * workers, 0
    waiting: set[int] = set()
    version, pulled = 0, [0] * workers  # updates, of all and before a worker's pull
    while heap:
        now, worker, kind, batch, part = heapq.heappop(heap)
        if kind == "pull":
            if taken == batches:
                continue
            yield Event(now, "pull", worker, taken)
            heapq.heappush(heap, (now, worker, "get", taken, 0))
            taken, pulled[worker] = taken + 1, version
        elif kind in free and part < servers:
            server = (worker + part) % servers  # each begins elsewhere: no queue at 0
            if server_bytes[server]:
                start = max(now, free[kind][server])
                now = free[kind][server] = start + server_bytes[server] / link.bandwidth
            heapq.heappush(heap, (now, worker, kind, batch, part + 1))
        elif kind == "get":
            ready = now + latency + float(seconds[worker, done[worker]])
            heapq.heappush(heap, (ready, worker, "put", batch, 0))
        elif kind == "put":
            heapq.heappush(heap, (now + latency, worker, "push", batch, 0))
        else:
            yield Event(now, "push", worker, batch)
            done[worker] += 1
            if pulled[worker] < version:  # late: it has nothing to wait for
                heapq.heappush(heap, (now, worker, "pull", -1, 0))
                continue
            waiting.add(worker)
            version += mode == "sync" and len(waiting) == workers - backups
            for other in _released(mode, waiting, done, staleness, backups):
                waiting.remove(other)
                heapq.heappush(heap, (now, other, "pull", -1, 0))


def _released(
    mode: str,
    waiting: set[int],
    done: Sequence[int],
    staleness: int | None,
    backups: int,
) -> list[int]:
    """Return the waiting workers that may continue."""
    if mode == "sync":
        return sorted(waiting) if len(waiting) == len(done) - backups else []
    ahead = math.inf if staleness is None else staleness
    return [w for w in sorted(waiting) if done[w] - min(done) <= ahead]


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
    """Raise for a mode, a bound on staleness, or backups that do not fit together."""
    check_choice("mode", mode, MODES)
    check_count("workers", workers, max=MAX_RANKS)
    check_count("backups", backups, min=0, max=workers - 1)
    if backups and mode != "sync":
        raise invalid("no backups unless mode is 'sync'", backups)
    if mode == "bounded":
        hint = "say how far ahead of the slowest a worker may be, as in staleness=2"
        check_count("staleness", staleness, min=0, hint=hint)
    elif staleness is not None:
        raise invalid("no staleness unless mode is 'bounded'", staleness)
