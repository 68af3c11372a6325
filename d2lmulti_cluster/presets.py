"""Machines by name, from public specification sheets; the source stands next to each.

`sheet` is the vendor's specification, `nccl` NVIDIA's tuning table (src/graph/tuning.cc
and topo.h in github.com/NVIDIA/nccl), `ofi` Amazon's (src/tuner/nccl_ofi_model.cpp in
github.com/aws/aws-ofi-nccl), `mamf` the best matrix products that Stas Bekman's
*Machine Learning Engineering* lists. No number is fitted to the tables that the model
is judged on.
"""

from __future__ import annotations

from dataclasses import replace

from d2lmulti.checks import check_choice, shown
from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link

from .hardware import Cluster, Device

GB, GiB, TF, US = 1e9, 2**30, 1e12, 1e-6
# The best product over the sheet's peak where nobody has published one: the middle of
# the three below that are (mamf: A100, H100, B200), rounded.
USUAL = 0.80

DEVICES = {
    device.name: device
    for device in (
        # sheet: Tesla K80 board, 8.74 TFLOPS and 480 GB/s with boost, halved: two GPUs.
        Device("K80", 4.37 * TF, 240 * GB, 12 * GB, 13, USUAL),
        Device("M60", 4.83 * TF, 160 * GB, 8 * GB, 16, USUAL),  # sheet, half a board
        Device("P40", 11.76 * TF, 346 * GB, 24 * GB, 30, USUAL),  # sheet
        Device("P100", 10.6 * TF, 732 * GB, 16 * GB, 56, USUAL),  # sheet, SXM2, float32
        Device("V100", 125 * TF, 900 * GB, 16 * GB, 80, USUAL),  # sheet, SXM2, float16
        Device("V100-32GB", 125 * TF, 900 * GB, 32 * GB, 80, USUAL),  # sheet
        Device("T4", 65 * TF, 320 * GB, 16 * GB, 40, USUAL),  # sheet, float16
        Device("2080Ti", 107.6 * TF, 616 * GB, 11 * GB, 68, USUAL),  # sheet (Turing)
        Device("3090", 71 * TF, 936 * GB, 24 * GB, 82, USUAL),  # sheet, fp32 sum
        Device("4090", 165.2 * TF, 1008 * GB, 24 * GB, 128, USUAL),  # sheet, fp32 sum
        # sheet A100 SXM; mamf 271.2 of 312.
        Device("A100", 312 * TF, 2039 * GB, 80 * GB, 108, 0.869, generation="ampere"),
        Device(
            "A100-40GB", 312 * TF, 1555 * GB, 40 * GB, 108, 0.869, generation="ampere"
        ),
        # sheet H100 SXM, dense; mamf 794.5 of 989.
        Device("H100", 989 * TF, 3350 * GB, 80 * GB, 132, 0.803, generation="hopper"),
        Device("H200", 989 * TF, 4800 * GB, 141 * GB, 132, 0.803, generation="hopper"),
        # sheet GB200: 2.5 PFLOPS bf16 dense, 186 GB, 8 TB/s; mamf, B200: 1745 of 2250.
        Device("GB200", 2500 * TF, 8000 * GB, 186 * GB, 148, 0.775),
        # sheet Cloud TPU v2 (a core): 22.5 TFLOPS, 300 GB/s, 8 GB.
        Device("TPU", 22.5 * TF, 300 * GB, 8 * GB, 1, USUAL),
    )
}


# nccl topo.h: a link carries 20 GB/s on SM70 and SM80, 20.6 on SM90; PCIe 3 x16 12,
# PCIe 4 x16 24; latencies of a hop (Simple) from tuning.cc: NVLink 3.4, PCIe 5.7 us.
_PCIE3, _PCIE4 = Link(5.7 * US, 12 * GB), Link(5.7 * US, 24 * GB)
_V100 = Link(3.4 * US, 6 * 20 * GB)  # sheet: six links
_A100 = Link(3.4 * US, 12 * 20 * GB)  # sheet: twelve links
_H100 = Link(3.4 * US, 18 * 20.6 * GB)  # sheet: eighteen links

INFINIBAND = (2.7 * US, 4.0 * US, 14 * US)  # nccl tuning.cc: NET, ring
EFA = (20 * US, 20 * US, 23 * US)  # ofi: 20 us, and 3 us to complete under Simple
SOCKETS = (30 * US, 30 * US, 30 * US)  # a TCP message between two EC2 hosts, one way


def _cluster(
    name: str, gpu: str, inside: Link, gigabits: float, per_node: int, nics: int,
    hops: tuple[float, float, float] = INFINIBAND,
) -> Cluster:  # fmt: skip
    between = Link(hops[-1], gigabits / 8 * GB)
    fabric = "pcie" if inside in (_PCIE3, _PCIE4) else "nvlink"
    device = DEVICES[gpu]
    return Cluster(
        name, device, inside, between, per_node, nics, hops=hops, fabric=fabric
    )


CLUSTERS = {
    cluster.name: cluster
    for cluster in (
        # Amazon's EC2 pages: 16 GK210 and 25 Gbit/s; 4 T4 and 50; 8 V100 and 25.
        _cluster("p2.16xlarge", "K80", _PCIE3, 25, 16, 1, SOCKETS),
        _cluster("g4dn.12xlarge", "T4", _PCIE3, 50, 4, 1, SOCKETS),
        _cluster("p3.16xlarge", "V100", _V100, 25, 8, 1, SOCKETS),
        _cluster("p40-box", "P40", _PCIE3, 100, 8, 1),
        # sheet: four links of 20 GB/s; nccl topo.h: 18 of them on SM60.
        _cluster("p100-box", "P100", Link(3.4 * US, 4 * 18 * GB), 100, 8, 4),
        _cluster("p100-pcie", "P100", _PCIE3, 100, 8, 1),
        _cluster("dgx-1", "V100-32GB", _V100, 100, 8, 4),  # sheet: 4 x 100 Gbit/s
        _cluster("dgx-a100", "A100", _A100, 200, 8, 8),  # sheet: 8 x 200 Gbit/s
        _cluster("dgx-h100", "H100", _H100, 400, 8, 8),  # sheet: 8 x 400 Gbit/s
        _cluster("p5.48xlarge", "H100", _H100, 400, 8, 8, EFA),  # EC2: 3,200 Gbit/s
        # sheet: 72 GPUs on one NVLink of eighteen links; nccl: 40.1 GB/s on SM100.
        _cluster("gb200-nvl72", "GB200", Link(3.4 * US, 18 * 40.1 * GB), 400, 72, 72),
        _cluster("2x3090-pcie", "3090", _PCIE4, 10, 2, 1, SOCKETS),
        _cluster("2x4090-pcie", "4090", _PCIE4, 10, 2, 1, SOCKETS),
        # sheet: two links of 25 GB/s each way.
        _cluster("2x2080ti", "2080Ti", Link(3.4 * US, 2 * 20 * GB), 10, 2, 1, SOCKETS),
    )
}


def cluster_names() -> list[str]:
    """Return the names that `get_cluster` knows."""
    return list(CLUSTERS)


def get_cluster(name: str) -> Cluster:
    """Return a machine by its name. Raises `InvalidInput` for an unknown one.

    >>> get_cluster("dgx-h100").device.name
    'H100'
    """
    return CLUSTERS[check_choice("cluster", name, CLUSTERS)]


def find_device(name: str) -> Device:
    """Return a device whose name is part of `name`, whatever stands around it.

    >>> find_device("K80 p2.16xlarge").name, find_device("8xA100-80GB").name
    ('K80', 'A100')
    """
    words = "".join(name.lower().split()) if isinstance(name, str) else ""
    words = words.replace("-", "")
    known = {key.lower().replace("-", ""): key for key in DEVICES}
    found = [key for key in sorted(known, key=len, reverse=True) if key in words]
    if not found:
        raise InvalidInput(
            f"expected a GPU among {', '.join(DEVICES)}, got {shown(name)}; take the "
            "nearest of them, or add its sheet to cluster/presets.py"
        )
    return DEVICES[known[found[0]]]


def with_nodes_of(cluster: Cluster, per_node: int) -> Cluster:
    """Return the same cluster with fewer devices per node, as many NICs for each."""
    nics = max(1, cluster.nics * per_node // cluster.per_node)
    return replace(cluster, per_node=per_node, nics=nics)
