"""Machines by name: `data/devices.csv` and `data/clusters.csv`, with their sources.

There, `sheet` is the vendor's data sheet, `nccl` NVIDIA's tuning table
(src/graph/tuning.cc and topo.h in github.com/NVIDIA/nccl), `mamf` the best matrix
products that Stas Bekman's *Machine Learning Engineering* lists. NCCL's latency of a
hop (Simple) is 3.4 us over NVLink and 5.7 us over PCIe. No number is fitted to the
tables of `validate`.
"""

from __future__ import annotations

from dataclasses import replace

from d2lmulti.checks import check_choice, shown
from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link

from .comparison import Row, read_data
from .hardware import Cluster, Device

GB, TF, US = 1e9, 1e12, 1e-6
# The best multiplication over the sheet's peak where none is published: the median of
# the three published ones (mamf: A100, H100, B200), rounded.
USUAL = 0.80
# Latencies of a message between nodes, and in a tree where they differ.
SOCKETS = (30 * US, 30 * US, 30 * US)  # a TCP message between two EC2 hosts, one way
HOPS = {
    "infiniband": (2.7 * US, 4.0 * US, 14 * US),  # nccl tuning.cc: NET, ring
    # Amazon's src/tuner/nccl_ofi_model.cpp in github.com/aws/aws-ofi-nccl: 20 us, and
    # 3 us to complete under Simple.
    "efa": (20 * US, 20 * US, 23 * US),
    "sockets": SOCKETS,
}
TREE_HOPS = {"infiniband": (5.0 * US, 8.5 * US, 14 * US)}  # nccl tuning.cc: NET, tree


def _device(row: Row) -> Device:
    return Device(
        row.text("name"),
        row.number_of("tflops") * TF,
        row.number_of("memory_GBps") * GB,
        row.number_of("memory_GB") * GB,
        row.count("units"),
        row.number_of("matmul_share") if row.text("matmul_share") else USUAL,
        generation=row.text("generation"),
    )


def _cluster(row: Row) -> Cluster:
    hops = HOPS[row.text("hops")]
    return Cluster(
        row.text("name"),
        DEVICES[row.text("gpu")],
        Link(row.number_of("link_us") * US, row.number_of("link_GBps") * GB),
        Link(hops[-1], row.number_of("nic_Gbps") / 8 * GB),
        row.count("per_node"),
        row.count("nics"),
        hops=hops,
        tree_hops=TREE_HOPS.get(row.text("hops")),
        fabric=row.text("fabric"),
    )


_ROWS = read_data("devices")
DEVICES = {device.name: device for device in map(_device, _ROWS)}
CLUSTERS = {c.name: c for c in map(_cluster, read_data("clusters"))}
# The cluster that is assumed for a GPU where a table names no machine.
MACHINE_OF = {row.text("name"): row.text("machine") for row in _ROWS}


def get_cluster(name: str) -> Cluster:
    """Return a machine by its name. Raises `InvalidInput` for an unknown one.

    >>> get_cluster("dgx-h100").device.name
    'H100'
    """
    return CLUSTERS[check_choice("cluster", name, CLUSTERS)]


def find_device(name: str) -> Device:
    """Return the device whose name is part of `name`.

    >>> find_device("K80 p2.16xlarge").name, find_device("8xA100-80GB").name
    ('K80', 'A100')
    """
    words = "".join(name.lower().split()) if isinstance(name, str) else ""
    words = words.replace("-", "")
    by_word = {key.lower().replace("-", ""): key for key in DEVICES}
    matches = [key for key in sorted(by_word, key=len, reverse=True) if key in words]
    if not matches:
        raise InvalidInput(
            f"expected a GPU among {', '.join(DEVICES)}, got {shown(name)}; take the "
            "nearest of them, or add its data sheet to d2lmulti_cluster/data"
        )
    return DEVICES[by_word[matches[0]]]


def with_nodes_of(cluster: Cluster, per_node: int) -> Cluster:
    """Return the same cluster with fewer devices per node, as many NICs for each."""
    nics = max(1, cluster.nics * per_node // cluster.per_node)
    return replace(cluster, per_node=per_node, nics=nics)
