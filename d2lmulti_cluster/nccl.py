"""The time of NCCL's collectives: published latencies, protocols, and choices.

NCCL has three protocols: LL (half the bandwidth, the lowest latency), LL128, and
Simple. The slowest hop limits the bytes of a ring; its latency is charged at every hop
too, which is an upper bound. Across nodes small all-reduces use a tree. Sources:
src/graph/tuning.cc and topo.h in NCCL 2.2x; the regions of Amazon's tuner,
src/tuner/nccl_ofi_regions.c in aws-ofi-nccl.
Chapter: *cost_model*.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from d2lmulti.checks import MAX_RANKS, check_choice, check_count, check_number

from .hardware import Cluster

US = 1e-6
KERNEL = 2 * US  # start and end of one GPU kernel: the time of empty ones
SHARE_OF_UNITS = 16  # multiprocessors of a ring: its channels (NCCL's log)
COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall")
ALGORITHMS = ("ring", "tree")


class Protocol(NamedTuple):
    """Base latency; a hop's, by fabric; and the part of the bandwidth that is data."""

    name: str
    base: float
    tree_base: float
    hop: dict[str, float]
    tree_hop: dict[str, float]
    data: float


PROTOCOLS = (
    Protocol(
        "LL", 6.6 * US, 6.8 * US, {"nvlink": 0.6 * US, "pcie": 1.0 * US},
        {"nvlink": 0.6 * US, "pcie": 1.0 * US}, 1 / 2,
    ),
    Protocol(
        "LL128", 14 * US, 14 * US, {"nvlink": 1.9 * US, "pcie": 2.5 * US},
        {"nvlink": 1.25 * US, "pcie": 1.9 * US}, 0.92,
    ),
    Protocol(
        "Simple", 8.4 * US, 0.0, {"nvlink": 3.4 * US, "pcie": 5.7 * US},
        {"nvlink": 28 * US, "pcie": 28 * US}, 1.0,
    ),
)  # fmt: skip
# tuning.cc allows LL128 on NVLink from Volta on; the others have two protocols.
WITHOUT_LL128 = ("K80", "M60", "P40", "P100", "T4", "2080Ti", "3090", "4090")
# tuning.cc, llMaxBws: bus bandwidth of LL on one, two, four nodes. On several, it
# depends on the processor: in DGX nodes, AMD's beside A100s, and Intel's elsewhere.
LL_MOST = {
    "V100": (39e9, 39e9, 20.4e9),
    "A100": (87.7e9, 22.5e9, 19e9),
    "H100": (141e9, 39e9, 20.4e9),
}
# Amazon's tuner for 8 GPUs a node (p5en): a tree up to so many bytes (bytes, ranks).
# On p5 it takes a tree for larger vectors too, such as 256 MiB on 128 ranks, for which
# this model's tree is far too fast. So these edges are used for every machine.
TREE_UP_TO = ((14_680_064, 16), (150_994_944, 128), (251_658_240, 1024))


def nccl_seconds(
    collective: str,
    nbytes: float,
    n: int,
    cluster: Cluster,
    per_node: int | None = None,
    algorithm: str | None = None,
) -> float:
    """Return the seconds of a collective of n ranks, `per_node` of them in each node.

    `nbytes` is the whole vector: the result of an all-gather, the input of a
    reduce-scatter. Every node's rings use the NICs of all its ranks. `algorithm` is
    ring or tree. Without one, it is the faster of the two if the vector is small enough
    for a tree by Amazon's tuner, and a ring otherwise. Only an all-reduce has a tree.
    Raises `InvalidInput` for another collective or algorithm, and for no ranks.

    >>> from d2lmulti_cluster.presets import get_cluster
    >>> dgx = get_cluster("dgx-h100")
    >>> ring, tree = (nccl_seconds("allreduce", 1e8, 4096, dgx, algorithm=name)
    ...               for name in ("ring", "tree"))
    >>> round(ring * 1e3, 1), round(tree * 1e3, 1)
    (31.9, 0.8)
    """
    check_choice("collective", collective, COLLECTIVES)
    if algorithm is not None:
        known = ALGORITHMS if collective == "allreduce" else ("ring",)
        check_choice("algorithm", algorithm, known)
    check_number("nbytes", nbytes, min=0)
    check_count("n", n, max=MAX_RANKS)
    if per_node is None:
        per_node = cluster.per_node
    per_node = min(n, check_count("per_node", per_node, max=MAX_RANKS))
    if n == 1:
        return 0.0
    nodes = -(-n // per_node)
    bandwidth = cluster.inside.bandwidth
    if nodes > 1:
        bandwidth = min(bandwidth, cluster.nic_per_device * per_node)
    tree = math.inf
    if algorithm == "tree" or _tree_allowed(collective, nbytes, n, nodes):
        tree = _tree(nbytes, nodes, per_node, bandwidth, cluster)
    if algorithm == "tree":
        return KERNEL + tree
    ring = _ring(collective, nbytes, n, nodes, bandwidth, cluster)
    return KERNEL + (ring if algorithm == "ring" else min(ring, tree))


def _ring(
    collective: str, nbytes: float, n: int, nodes: int, bandwidth: float,
    cluster: Cluster,
) -> float:  # fmt: skip
    steps = (2 if collective == "allreduce" else 1) * (n - 1)
    wire = nbytes if collective == "broadcast" else nbytes * steps / n
    best = math.inf
    for i, protocol in _protocols(cluster):
        hop = protocol.hop[cluster.fabric] if nodes == 1 else cluster.hops[i]
        speed = protocol.data * bandwidth
        if protocol.name == "LL":
            speed = min(speed, _ll_max(cluster, nodes))
        best = min(best, protocol.base + steps * hop + wire / speed)
    return best


def _tree(
    nbytes: float, nodes: int, per_node: int, bandwidth: float, cluster: Cluster
) -> float:
    """Return the seconds of a tree over the nodes, with a chain in every node."""
    best = math.inf
    between = cluster.tree_hops or cluster.hops
    for i, protocol in _protocols(cluster):
        if protocol.name != "Simple":
            inner = (per_node - 1) * protocol.tree_hop[cluster.fabric]
            hops = 2 * (inner + math.log2(nodes) * between[i])
            wire = 2 * nbytes / (protocol.data * bandwidth)
            best = min(best, protocol.tree_base + hops + wire)
    return best


def _protocols(cluster: Cluster) -> list[tuple[int, Protocol]]:
    some = cluster.fabric == "pcie" or cluster.device.name in WITHOUT_LL128
    pairs = enumerate(PROTOCOLS)
    return [(i, p) for i, p in pairs if not (some and p.name == "LL128")]


def _ll_max(cluster: Cluster, nodes: int) -> float:
    name = cluster.device.name.split("-")[0]
    return LL_MOST[name][min(nodes, 3) - 1] if name in LL_MOST else math.inf


def _tree_allowed(collective: str, nbytes: float, n: int, nodes: int) -> bool:
    """Return whether the tuner considers a tree: between nodes, up to a size."""
    return collective == "allreduce" and nodes > 1 and nbytes <= _edge(n)


def _edge(n: int) -> float:
    """Return the largest vector for which the tuner chooses a tree, by ranks."""
    (x, first), *more = TREE_UP_TO
    for max_bytes, ranks in more:
        if n <= ranks or (max_bytes, ranks) == more[-1]:
            return x + (n - first) * (max_bytes - x) / (ranks - first)
        x, first = max_bytes, ranks
    return x


def concurrent(compute: float, communicate: float, cluster: Cluster) -> float:
    """Return the seconds of a concurrent computation and collective.

    The collective's kernels occupy some multiprocessors, which the computation lacks.
    """
    lost = min(1.0, SHARE_OF_UNITS / cluster.device.units)
    return max(communicate, compute + lost * communicate)
