"""How long one GPU takes: matrix products, memory-bound operations, attention.

A product reaches the peak only in whole waves of whole tiles; everything else goes at
the speed of the memory. Each constant has its source beside it. Chapter: *cost_model*.
"""

from __future__ import annotations

import math

from d2lmulti.checks import check_kind, check_number

from .hardware import Device
from .nccl import KERNEL

# A network's own shapes (4,096 squared) reach 80 to 90 % of the best shape
# (mamf-finder's README, stas00/ml-engineering): the middle.
USUAL_SHAPE = 0.85
# 128 x 256 is the tile that runs at full rate; 128 x 128 moves more operands and loses
# 20 % (the published worklogs of products on Hopper).
TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.8))
# FlashAttention-2 and cuDNN on H100, causal, 4,096 long, head sizes 64 and 128: forward
# and backward TFLOP/s over 989 (figures of the FlashAttention-3 paper; its backward is
# plotted without mask, and taken times the forward's causal over its full rate).
FLASH = {
    "flash": ((0.287, 0.250), (0.323, 0.272)),
    "cudnn": ((0.367, 0.375), (0.524, 0.429)),
}
FLASH_AMPERE = ((0.50, 0.40), (0.50, 0.40))  # FlashAttention-2: 50 to 73 % of an A100


def matmul_seconds(device: Device, m: float, n: float, k: float) -> float:
    """Tell how long a product of (m, k) by (k, n) takes in 16-bit numbers.

    Tiles are dealt out to the multiprocessors in waves; a wave that is not full takes
    as long as a full one. At least the time in which the memory delivers the operands.
    Raises `InvalidInput` for negative sizes.
    """
    check_kind("device", device, Device, "a Device", "see find_device(name)")
    for name, size in (("m", m), ("n", n), ("k", k)):
        check_number(name, size, min=0)
    if not m * n * k:
        return 0.0
    rate = device.flops * device.matmul_share * USUAL_SHAPE / device.units
    best = math.inf
    for height, width, speed in TILES:
        tiles = math.ceil(m / height) * math.ceil(n / width)
        flops = math.ceil(tiles / device.units) * 2.0 * height * width * k
        best = min(best, flops / (rate * speed))
    moved = 2.0 * (m * k + k * n + m * n)
    return max(best, moved / (device.memory_bandwidth * device.memory_share)) + KERNEL


def memory_seconds(device: Device, nbytes: float, kernels: float = 1) -> float:
    """Tell how long operations take that only read and write so many bytes."""
    check_kind("device", device, Device, "a Device", "see find_device(name)")
    check_number("nbytes", nbytes, min=0)
    check_number("kernels", kernels, min=0)
    return nbytes / (device.memory_bandwidth * device.memory_share) + kernels * KERNEL


def flash_seconds(
    device: Device, flops: float, head_size: float, kind: str
) -> tuple[float, float]:
    """Forward and backward seconds of fused causal attention.

    `flops` are those of the whole square, forward; the mask halves them, and the way
    back has 2.5 times as many. `kind` is flash or cudnn.
    """
    small, large = FLASH_AMPERE if device.generation == "ampere" else FLASH[kind]
    weight = min(max((head_size - 64) / 64, 0.0), 1.0)
    rates = [a + weight * (b - a) for a, b in zip(small, large, strict=True)]
    forward, backward = (device.flops * rate for rate in rates)
    return flops / 2 / forward, 2.5 * flops / 2 / backward
