"""A modeled machine: devices in nodes, with ports that they share.

Nothing here is measured or fitted: a `Device` and a `Link` hold the values of a data
sheet, which `presets.py` names. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2lmulti.checks import MAX_RANKS, check_count, check_number, check_positive
from d2lmulti.observe.link import Link


@dataclass(frozen=True)
class Device:
    """One GPU: the peaks of its data sheet, and the fraction that real kernels reach.

    `flops` is the peak per second in the dtype of matrix multiplications.
    `matmul_share` is the best measured multiplication over that peak, `memory_share`
    the best measured copy over `memory_bandwidth` (bytes per second).
    """

    name: str
    flops: float
    memory_bandwidth: float
    memory: float  # bytes
    units: int  # streaming multiprocessors, over which tiles are distributed
    matmul_share: float = 1.0
    memory_share: float = 0.92
    generation: str = ""  # which attention kernels were published for it

    def __post_init__(self) -> None:
        for name in ("flops", "memory_bandwidth", "memory"):
            check_positive(name, getattr(self, name))
        for name in ("matmul_share", "memory_share"):
            check_number(name, getattr(self, name), above=0, max=1)
        check_count("units", self.units)


@dataclass(frozen=True)
class Cluster:
    """Nodes of `per_node` devices; a message within a node or between two of them.

    Inside a node every device has a port in and one out (`inside`). Between nodes a
    message goes through one of the `nics` of each of the two nodes (`between`); the
    devices of a node share them evenly. With `oversubscription` above 1, the nodes
    under one leaf switch (`per_leaf` of them) share an uplink that is that much slower
    than all their NICs together. `hops` are NCCL's latencies of a message between nodes
    by its protocols LL, LL128 and Simple, in seconds: in a ring, and in a tree too
    unless it has `tree_hops` of its own.
    """

    name: str
    device: Device
    inside: Link
    between: Link
    per_node: int = 8
    nics: int = 8
    per_leaf: int = 32
    oversubscription: float = 1.0
    hops: tuple[float, float, float] = (2.7e-6, 4.0e-6, 14e-6)
    tree_hops: tuple[float, float, float] | None = None
    fabric: str = "nvlink"  # or pcie: which of NCCL's published latencies hold

    def __post_init__(self) -> None:
        for name in ("per_node", "nics", "per_leaf"):
            check_count(name, getattr(self, name), max=MAX_RANKS)
        check_number("oversubscription", self.oversubscription, min=1)

    @property
    def nic_per_device(self) -> float:
        """Return the bytes per second of its node's NICs per device."""
        return self.between.bandwidth * self.nics / self.per_node

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes of `ranks` ranks, in rank order."""
        return -(-check_count("ranks", ranks, max=MAX_RANKS) // self.per_node)


def uniform(latency: float, bandwidth: float) -> Cluster:
    """Make a cluster in which every pair of ranks has the same link.

    >>> uniform(5e-6, 1e9).inside.bandwidth
    1000000000.0
    """
    link = Link(latency, bandwidth)
    device = Device("uniform", 1e12, 1e12, 1e12, 1)
    return Cluster("uniform", device, link, link, per_node=1, nics=1)
