"""Closed formulas of a collective's time, by latency (alpha) and bandwidth (1 / beta).

n ranks, a vector of `nbytes` on each, one link for every pair: a message of b bytes
takes alpha + b * beta. Each formula holds for parts that are equally long, that is
where n divides the vector; `clock.py` simulates the plans. Chapter: *cost_model*.
Sources: Thakur, Rabenseifner, Gropp (2005); Patarasuk, Yuan (2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from d2lmulti.checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_list,
    check_number,
    check_positive,
)
from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link
from d2lmulti.plans.rounds import Round

from .hardware import Cluster


def star(n: int, nbytes: float, link: Link) -> float:
    """Return the time of 2 (n - 1) messages at the port of rank 0."""
    return 2 * (n - 1) * link.seconds(nbytes)


def tree(n: int, nbytes: float, link: Link) -> float:
    """Return the time of 2 ceil(log2 n) messages of the whole vector."""
    return 2 * _levels(n) * link.seconds(nbytes)


def ring(n: int, nbytes: float, link: Link) -> float:
    """Return the time of 2 (n - 1) messages of 1/n of the vector."""
    return 2 * (n - 1) * link.seconds(nbytes / n)


def recursive_doubling(n: int, nbytes: float, link: Link) -> float:
    """Return the time of log2 n messages of the vector (+2 if n is no power of 2)."""
    doublings = n.bit_length() - 1
    return (doublings + 2 * (n > 1 << doublings)) * link.seconds(nbytes)


def halving_doubling(n: int, nbytes: float, link: Link) -> float:
    """Return the time of 2 log2 n messages, 2 (n - 1) / n of the vector in all.

    If n is no power of two, two messages of whole vectors are added.
    """
    power = 1 << n.bit_length() - 1
    parts = sum(2 * link.seconds(nbytes / 2**i) for i in range(1, power.bit_length()))
    return parts + (2 * link.seconds(nbytes) if n > power else 0.0)


def reduce_scatter(n: int, nbytes: float, link: Link) -> float:
    """Return the time of n - 1 messages of 1/n of the vector: half of the ring.

    It is also that of `allgather`, and of `alltoall`, with a block for each rank.
    """
    return (n - 1) * link.seconds(nbytes / n)


def broadcast(n: int, nbytes: float, link: Link) -> float:
    """Return the time of ceil(log2 n) messages of the vector, also of `reduce`."""
    return _levels(n) * link.seconds(nbytes)


def hierarchical(n: int, nbytes: float, cluster: Cluster) -> float:
    """Return the time of two rings inside every node and a ring between nodes.

    There is one ring between the nodes for each device of a node. Holds for full nodes
    with a NIC for each device; the clock also models shared NICs.
    """
    k = min(n, cluster.per_node)
    nodes = cluster.nodes(n)
    check_number("nbytes", nbytes, min=0)
    if n % k:
        raise InvalidInput(
            f"expected full nodes of {k} ranks for this formula, got {n} ranks; play "
            "the plan on the clock instead"
        )
    slow = Link(cluster.between.latency, min(cluster.between.bandwidth,
                                             cluster.nic_per_device))  # fmt: skip
    inner = 2 * (k - 1) * cluster.inside.seconds(nbytes / k)
    return inner + ring(nodes, nbytes / k, slow)


FORMULAS: dict[str, Callable[[int, float, Link], float]] = {
    "star": star,
    "tree": tree,
    "ring": ring,
    "recursive_doubling": recursive_doubling,
    "halving_doubling": halving_doubling,
    "reduce_scatter": reduce_scatter,
    "allgather": reduce_scatter,
    "broadcast": broadcast,
    "reduce": broadcast,
    "alltoall": reduce_scatter,
}


def formula_seconds(algorithm: str, n: int, nbytes: float, cluster: Cluster) -> float:
    """Apply the formula to a cluster; the slowest hop limits a ring.

    `algorithm`: one of FORMULAS, or hierarchical. On more than one node every message
    is assumed to be sent between nodes. That holds for a ring whose rounds start
    together, since each has such a message, and is the worst case for the others.
    """
    check_choice("algorithm", algorithm, [*FORMULAS, "hierarchical"])
    check_count("n", n, max=MAX_RANKS)
    check_number("nbytes", nbytes, min=0)
    if algorithm == "hierarchical":
        return hierarchical(n, nbytes, cluster)
    link = cluster.inside if cluster.nodes(n) == 1 else cluster.between
    return FORMULAS[algorithm](n, nbytes, link)


def bus_bandwidth(collective: str, n: int, nbytes: float, seconds: float) -> float:
    """Return bytes per second of each link, the bus bandwidth of nccl-tests.

    >>> bus_bandwidth("allreduce", 8, 800e6, 0.01) / 1e9
    140.0
    """
    share = (check_count("n", n) - 1) / n
    factors = {"allreduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("reduce_scatter", "allgather", "alltoall"), share)
    check_choice("collective", collective, factors)
    check_number("nbytes", nbytes, min=0)
    return factors[collective] * nbytes / check_number("seconds", seconds, above=0)


def _levels(n: int) -> int:
    return math.ceil(math.log2(n))


def plan_seconds(
    rounds: Iterable[Round], itemsize: int, start_up: float, bytes_per_second: float
) -> float:
    """Return the seconds of a plan if every rank sends and receives at one rate.

    A rank sends its messages of a round one after another, and receives in parallel;
    each costs the start-up time and its bytes. The slowest rank ends the round.
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
    """Return (begin, end) of every bucket, in the order in which they are reduced.

    The last gradient of bucket i is ready at `ready[i]`, and its all-reduce takes
    `costs[i]`, in seconds.

    >>> spans([1.0, 2.0, 3.0], [1.5, 1.0, 0.25])
    [(1.0, 2.5), (2.5, 3.5), (3.5, 3.75)]
    """
    for name, times in (("ready", ready), ("costs", costs)):
        for time in check_list(name, times, "seconds, one per bucket", 0):
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
