"""Simulate a collective on a modeled cluster; compare it with the closed formula."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from d2lmulti.checks import MAX_RANKS, check_choice, check_count, shown
from d2lmulti.errors import InvalidInput
from d2lmulti.files import progress
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.collectives import (
    allgather,
    alltoall,
    broadcast,
    reduce,
    reduce_scatter,
)
from d2lmulti.plans.rounds import MAX_ELEMENTS, Plan, Round

from .clock import play
from .cost import bus_bandwidth, formula_seconds
from .hardware import Cluster

PLANS: dict[str, Plan] = {
    "reduce_scatter": reduce_scatter,
    "allgather": allgather,
    "broadcast": broadcast,
    "reduce": reduce,
    "alltoall": alltoall,
    "allreduce": ALLREDUCE["ring"],
}
ITEM = 4  # bytes of an element: float32
MANY = 10**8  # messages: more take longer than about two seconds
A_SECOND = 5 * 10**7  # messages that the clock simulates per second, about
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip


@dataclass(frozen=True)
class Simulation:
    """The results of clock and formula: seconds, and exact counts."""

    collective: str
    algorithm: str
    ranks: int
    nbytes: int
    cluster: str
    seconds: float  # of the clock
    formula_seconds: float | None  # None where no formula holds: uneven nodes
    bus_bandwidth: float | None  # bytes per second
    rounds: int
    messages: int
    bytes_moved: int
    played_in: float  # seconds that this took


def count_messages(
    collective: str, ranks: int, cluster: Cluster, algorithm: str = "ring"
) -> int:
    """Return an upper bound of the messages of a plan of rings or pairs.

    0 for the other plans, whose messages grow hardly faster than the ranks.

    >>> from d2lmulti_cluster.presets import get_cluster
    >>> count_messages("allreduce", 65536, get_cluster("dgx-h100"))
    8589803520
    """
    if collective in ("reduce_scatter", "allgather", "alltoall"):
        return ranks * (ranks - 1)
    if collective == "allreduce" and algorithm == "ring":
        return 2 * ranks * (ranks - 1)
    if collective == "allreduce" and algorithm == "hierarchical":
        inside, nodes = min(ranks, cluster.per_node), cluster.nodes(ranks)
        return 2 * ranks * (inside - 1) + 2 * inside * nodes * (nodes - 1)
    return 0


def formula_or_none(
    collective: str, ranks: int, nbytes: int, cluster: Cluster, algorithm: str = "ring"
) -> float | None:
    """Return the seconds of the closed formula; None where a node is not full."""
    name = algorithm if collective == "allreduce" else collective
    if name == "hierarchical" and ranks % min(ranks, cluster.per_node):
        return None
    return formula_seconds(name, ranks, nbytes, cluster)


def simulate(
    collective: str, ranks: int, nbytes: int, cluster: Cluster, algorithm: str = "ring"
) -> Simulation:
    """Simulate a collective of `ranks` vectors of `nbytes` bytes (float32).

    `algorithm` is that of the all-reduce. An all-to-all's vector is that of one rank.
    Raises `InvalidInput` for bytes that are no whole elements.

    >>> from d2lmulti_cluster.presets import get_cluster
    >>> played = simulate("allreduce", 8, 2**20, get_cluster("dgx-h100"))
    >>> played.messages, round(played.seconds * 1e6, 1)
    (112, 52.5)
    """
    check_choice("collective", collective, PLANS)
    check_choice("algorithm", algorithm, ALLREDUCE)
    check_count("ranks", ranks, max=MAX_RANKS)
    check_count("nbytes", nbytes, max=MAX_ELEMENTS)
    length, remainder = divmod(nbytes, ITEM)
    if collective == "alltoall":
        length, remainder = divmod(nbytes, ITEM * ranks)
    if remainder or not length:
        unit = ITEM * ranks if collective == "alltoall" else ITEM
        raise InvalidInput(
            f"expected a multiple of {unit} bytes (float32) as nbytes, got {nbytes}; "
            f"use {max(1, nbytes // unit) * unit}"
        )
    plan, name, more = PLANS[collective], collective, {}
    if collective == "allreduce":
        plan, name = ALLREDUCE[algorithm], algorithm
        more = {"per_node": cluster.per_node} if algorithm == "hierarchical" else {}
    total = count_messages(collective, ranks, cluster, algorithm)
    begin = time.perf_counter()
    with progress(total, " messages", name, wanted=total > MANY) as bar:
        played = play(_counted(plan(ranks, length, **more), bar), cluster, ITEM)
    took = time.perf_counter() - begin
    formula = formula_or_none(collective, ranks, nbytes, cluster, algorithm)
    bus = None
    if played.seconds:
        bus = bus_bandwidth(collective, ranks, nbytes, played.seconds)
    return Simulation(
        collective, name, ranks, nbytes, cluster.name, played.seconds, formula, bus,
        played.rounds, played.messages, played.bytes, took,
    )  # fmt: skip


def _counted(rounds: Iterable[Round], bar: Any) -> Iterator[Round]:
    """Yield the rounds, and advance a progress bar by their messages."""
    for this_round in rounds:
        yield this_round
        bar.update(len(this_round))


def parse_bytes(text: Any) -> int:
    """Return the bytes of a size: 4096, 64KiB, 100MB, 1.5 GB.

    >>> parse_bytes("100MB"), parse_bytes("64 KiB")
    (100000000, 65536)
    """
    pattern = r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?i?B)?\s*"
    words = text if isinstance(text, str) else ""
    size = Fraction(0)
    if match := re.fullmatch(pattern, words, re.IGNORECASE):
        size = Fraction(match[1]) * _UNITS.get((match[2] or "").upper(), 0)
    if not 1 <= size <= MAX_ELEMENTS or size.denominator > 1:
        raise InvalidInput(
            f"expected a number of bytes up to {MAX_ELEMENTS}, as in 4096, 64KiB or "
            f"100MB, got {shown(text)}"
        )
    return int(size)
