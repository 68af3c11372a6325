"""The virtual clock: simulate a plan on a modeled cluster, with contention.

Every rank has a clock of its own. A message begins when both its ends have finished
their earlier messages. It occupies a port of each, and shares the NICs of its node, and
the uplink of its switch, with the other messages of its round. A rank without a message
in a round does not wait for the end of that round. Chapter: *cost_model*.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from d2lmulti.checks import MAX_RANKS, check_count
from d2lmulti.observe.timeline import Timeline
from d2lmulti.plans.rounds import Round

from .hardware import Cluster


@dataclass
class Played:
    """The result of a simulation; rank r finished at `finish[r]` seconds."""

    seconds: float = 0.0
    rounds: int = 0
    messages: int = 0
    bytes: int = 0
    finish: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)


class _Ports:
    """The ports that the messages of a round use: the same for a whole ring."""

    def __init__(self, this_round: Round, cluster: Cluster, itemsize: int) -> None:
        self.source, self.target = this_round.source, this_round.target
        inside = self.source // cluster.per_node == self.target // cluster.per_node
        fast, slow = cluster.inside, cluster.between
        self.latency = np.where(inside, fast.latency, slow.latency)
        per_byte = np.where(inside, 1 / fast.bandwidth, 1 / slow.bandwidth)
        self.per_element = per_byte * itemsize
        self.alone = _unique(self.source) and _unique(self.target)
        self.shared = _shared_ports(self, inside, cluster, itemsize)
        self.ranks = int(max(self.source[-1], self.target.max())) + 1
        # Where every rank sends and receives once, a gather replaces the scatter.
        self.sender: np.ndarray | None = None
        if self.alone and len(self.source) == self.ranks and not self.shared:
            self.sender = np.argsort(self.target)

    def fits(self, this_round: Round) -> bool:
        """Return whether a round's messages use the same ports."""
        pairs = ((self.source, this_round.source), (self.target, this_round.target))
        return all(a is b or np.array_equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class _Shared:
    """Ports that several messages share: messages sorted by port."""

    order: np.ndarray  # rows of the round
    starts: np.ndarray  # where each port's rows begin in `order`
    port: np.ndarray  # of each row in `order`
    per_element: float


def play(
    rounds: Iterable[Round],
    cluster: Cluster,
    itemsize: int = 4,
    timeline: Timeline | None = None,
) -> Played:
    """Simulate a plan whose elements have `itemsize` bytes; add messages to `timeline`.

    A rank sends its messages of a round one after another, and receives in parallel.

    >>> from d2lmulti.plans.allreduce import ring
    >>> from d2lmulti_cluster.hardware import uniform
    >>> round(play(ring(4, 1000), uniform(1e-6, 1e9)).seconds * 1e6, 3)
    12.0
    """
    check_count("itemsize", itemsize, max=64)
    played, now, ports = Played(), np.zeros(0), None
    for this_round in rounds:
        if not len(this_round):
            continue
        if ports is None or not ports.fits(this_round):
            ports = _Ports(this_round, cluster, itemsize)
            check_count("the last rank", ports.ranks - 1, min=0, max=MAX_RANKS - 1)
            now = np.concatenate([now, np.zeros(max(0, ports.ranks - len(now)))])
        cost = this_round.length * ports.per_element
        cost += ports.latency
        if ports.sender is not None and ports.ranks == len(now) and timeline is None:
            end = np.take(now, ports.target)
            np.maximum(end, now, out=end)
            end += cost
            now = np.maximum(end, np.take(end, ports.sender))
        else:
            begin = np.maximum(now[ports.source], now[ports.target])
            end = _play_round(ports, begin, this_round.length, cost, now)
            if timeline is not None:
                _add_spans(timeline, this_round, itemsize, begin, end)
        played.rounds += 1
        played.messages += len(this_round)
        played.bytes += int(this_round.length.sum()) * itemsize
    played.finish, played.seconds = now, float(now.max(initial=0.0))
    return played


def _play_round(
    ports: _Ports,
    begin: np.ndarray,
    length: np.ndarray,
    cost: np.ndarray,
    now: np.ndarray,
) -> np.ndarray:
    """Return when each message of a round ends, and set the clocks of its ranks."""
    if ports.alone:
        end = begin + cost
    else:  # a port's messages start together and follow one another
        out = _port_ends(ports.source, begin, cost, len(now))
        into = _port_ends(ports.target, begin, cost, len(now))
        end = np.maximum(out[ports.source], into[ports.target])
    for shared in ports.shared:
        rows = shared.order
        first = np.maximum.reduceat((begin + ports.latency)[rows], shared.starts)
        load = np.add.reduceat(length[rows] * shared.per_element, shared.starts)
        end[rows] = np.maximum(end[rows], (first + load)[shared.port])
    np.maximum.at(now, ports.source, end)
    np.maximum.at(now, ports.target, end)
    return end


def _port_ends(
    rank: np.ndarray, begin: np.ndarray, cost: np.ndarray, ranks: int
) -> np.ndarray:
    first = np.zeros(ranks)
    np.maximum.at(first, rank, begin)
    return first + np.bincount(rank, weights=cost, minlength=ranks)


def _unique(ranks: np.ndarray) -> bool:
    return len(np.unique(ranks)) == len(ranks)


def _shared_ports(
    ports: _Ports, inside: np.ndarray, cluster: Cluster, itemsize: int
) -> list[_Shared]:
    """Return the NICs and uplinks that several messages use."""
    rows = np.flatnonzero(~inside)
    card = itemsize / cluster.between.bandwidth
    uplink = card / (cluster.per_leaf * cluster.nics) * cluster.oversubscription
    nodes = [ranks[rows] // cluster.per_node for ranks in (ports.source, ports.target)]
    leaves = [node // cluster.per_leaf for node in nodes]
    crossing = leaves[0] != leaves[1]
    shared: list[_Shared] = []
    for ranks, node, leaf in zip(
        (ports.source, ports.target), nodes, leaves, strict=True
    ):
        place = ranks[rows] % cluster.per_node
        cards = node * cluster.nics + place * cluster.nics // cluster.per_node
        shared += _sharing(rows, cards, card)
        if cluster.oversubscription > 1:
            shared += _sharing(rows[crossing], leaf[crossing], uplink)
    return shared


def _sharing(rows: np.ndarray, port: np.ndarray, per_element: float) -> list[_Shared]:
    order = np.argsort(port, kind="stable")
    port = port[order]
    new = np.concatenate([port[:1] >= 0, port[1:] != port[:-1]])
    if new.all():
        return []  # no two messages share a port
    starts = np.flatnonzero(new)
    return [_Shared(rows[order], starts, np.cumsum(new) - 1, per_element)]


def _add_spans(
    timeline: Timeline,
    this_round: Round,
    itemsize: int,
    begin: np.ndarray,
    end: np.ndarray,
) -> None:
    for t, first, last in zip(this_round, begin, end, strict=True):
        name = f"{t.length * itemsize} bytes to rank {t.target}"
        timeline.add(f"rank {t.source}", name, float(first), float(last))
