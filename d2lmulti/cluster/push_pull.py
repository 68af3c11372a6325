"""When workers pull, compute and push: the order of events on a modelled clock.

The order depends on times and on who must wait for whom, never on a tensor. So it is
computed here, as data; `parallel.parameter_server` plays it with real gradients.
Chapter: *parameter_server*.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..errors import InvalidInput

MODES = ("sync", "async", "bounded")


class Event(NamedTuple):
    """A worker reads the weights (pull), or its gradient is in (push)."""

    seconds: float
    kind: Literal["pull", "push"]
    worker: int
    batch: int  # number of the mini-batch, from one queue for all workers


@dataclass(frozen=True)
class Network:
    """Every worker and every server has one link, as fast in as out.

    A message takes `latency` seconds and its bytes / `bandwidth` (bytes a second). A
    link carries one message at a time; the next one waits. The default costs nothing.
    """

    latency: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        if not self.latency >= 0 or not self.bandwidth > 0:
            raise InvalidInput(
                "expected a latency of at least 0 seconds and a bandwidth above 0 "
                f"bytes a second, got {self.latency!r} and {self.bandwidth!r}"
            )


def worker_seconds(
    workers: int,
    steps: int,
    seconds: float = 1.0,
    *,
    jitter: float = 0.0,
    stragglers: Mapping[int, float] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Draw how long each worker computes on each of its steps: (workers, steps).

    `seconds` is the usual time. `jitter` is the standard deviation of its logarithm;
    worker i of `stragglers` takes `stragglers[i]` times as long. Raises `InvalidInput`
    for no workers, negative times and a straggler that is no worker.
    """
    stragglers = stragglers or {}
    check_workers(workers)
    if not 0 < seconds < math.inf or not 0 <= jitter < math.inf:
        raise InvalidInput(
            "expected seconds above 0 and a jitter of at least 0, got "
            f"{seconds!r} and {jitter!r}"
        )
    for worker, factor in stragglers.items():
        if worker not in range(workers) or not 0 < factor < math.inf:
            raise InvalidInput(
                f"expected stragglers as worker: factor, with workers 0 to "
                f"{workers - 1} and factors above 0, got {worker!r}: {factor!r}"
            )
    normal = np.random.default_rng(seed).standard_normal((workers, steps))
    factors = np.array([stragglers.get(w, 1.0) for w in range(workers)])
    return seconds * factors[:, None] * np.exp(jitter * normal)


def push_pull_events(
    mode: str,
    seconds: np.ndarray,
    batches: int,
    *,
    staleness: int | None = None,
    server_bytes: Sequence[int] = (0,),
    network: Network | None = None,
) -> Iterator[Event]:
    """Yield the events of a run over `batches` mini-batches, in order of (time, rank).

    Each worker pulls, computes for `seconds[worker, step]` and pushes, again and again;
    the next mini-batch goes to the next worker that pulls. `sync`: nobody pulls before
    all have pushed. `async`: nobody waits. `bounded`: who is more than `staleness`
    steps ahead of the slowest waits (stale synchronous parallel: Ho et al., 2013).
    `server_bytes` are the bytes of one push, or pull, by server.
    Raises `InvalidInput` for what `check_mode` refuses, and in `sync` for a number of
    batches that the workers do not divide.
    """
    workers = len(seconds)
    check_workers(workers)
    check_mode(mode, staleness)
    if mode == "sync" and batches % workers:
        raise InvalidInput(
            f"expected a number of batches that {workers} workers divide, got "
            f"{batches}; a synchronous step takes one from every worker"
        )
    if seconds.shape[1] * workers < batches or (
        mode != "sync" and seconds.shape[1] < batches and workers > 1
    ):
        raise InvalidInput(
            f"expected times for up to {batches} steps of a worker, got "
            f"{seconds.shape[1]}; draw more with worker_seconds(workers, steps)"
        )
    network = network or Network()
    servers = len(server_bytes)
    latency = network.latency if any(server_bytes) else 0.0
    # When each server's link is free, for what it sends (get) and receives (put).
    link = {"get": [0.0] * servers, "put": [0.0] * servers}
    heap = [(0.0, worker, "pull", -1, 0) for worker in range(workers)]
    done, waiting, taken = [0] * workers, set(range(0)), 0
    while heap:
        now, worker, kind, batch, part = heapq.heappop(heap)
        if kind == "pull":
            if taken == batches:
                continue
            yield Event(now, "pull", worker, taken)
            heapq.heappush(heap, (now, worker, "get", taken, 0))
            taken += 1
        elif kind in link and part < servers:
            server = (worker + part) % servers  # each begins elsewhere: no queue at 0
            if server_bytes[server]:
                start = max(now, link[kind][server])
                now = start + server_bytes[server] / network.bandwidth
                link[kind][server] = now
            heapq.heappush(heap, (now, worker, kind, batch, part + 1))
        elif kind == "get":
            ready = now + latency + float(seconds[worker, done[worker]])
            heapq.heappush(heap, (ready, worker, "put", batch, 0))
        elif kind == "put":
            heapq.heappush(heap, (now + latency, worker, "push", batch, 0))
        else:
            yield Event(now, "push", worker, batch)
            done[worker] += 1
            waiting.add(worker)
            for free in _released(mode, waiting, done, staleness):
                waiting.remove(free)
                heapq.heappush(heap, (now, free, "pull", -1, 0))


def _released(
    mode: str, waiting: set[int], done: Sequence[int], staleness: int | None
) -> list[int]:
    """Tell which of the waiting workers may go on."""
    if mode == "sync":
        return sorted(waiting) if len(waiting) == len(done) else []
    ahead = math.inf if staleness is None else staleness
    return [w for w in sorted(waiting) if done[w] - min(done) <= ahead]


def check_workers(workers: int) -> None:
    """Refuse fewer than one worker."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InvalidInput(f"expected at least 1 worker, got {workers!r}")


def check_mode(mode: str, staleness: int | None) -> None:
    """Refuse an unknown mode, and a bound where none belongs or one that is missing."""
    if mode not in MODES:
        raise InvalidInput(f"expected one of {', '.join(MODES)} as mode, got {mode!r}")
    if mode != "bounded" and staleness is not None:
        raise InvalidInput(
            f"expected no staleness in mode {mode!r}, got {staleness!r}; use "
            "mode='bounded'"
        )
    whole = isinstance(staleness, int) and not isinstance(staleness, bool)
    if mode == "bounded" and not (whole and staleness is not None and staleness >= 0):
        raise InvalidInput(
            "expected a staleness of 0 or more steps in mode 'bounded', got "
            f"{staleness!r}; say how far ahead a worker may be, as in staleness=2"
        )
