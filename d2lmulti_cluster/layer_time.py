"""The time of one layer of a transformer, forward and backward, split over GPUs.

A matrix multiplication reaches the peak only in whole waves of whole tiles; memory
bandwidth limits everything else. The collectives of tensor parallelism are added, some
of them hidden behind a multiplication. Each constant has its source next to it.
Chapter: *cost_model*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from d2lmulti.checks import check_number

from .hardware import Cluster, Device
from .nccl import KERNEL, concurrent, nccl_seconds
from .networks import Software, Transformer

# A network's own shapes (4,096 squared) reach 80 to 90% of the best shape
# (mamf-finder's README, stas00/ml-engineering): the middle.
USUAL_SHAPE = 0.85
# 128 x 256 is the tile that runs at full rate; 128 x 128 moves more operands and loses
# 20% (the published worklogs of products on Hopper).
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
    """Return how long a matrix multiplication of (m, k) by (k, n) takes in 16 bits.

    Tiles are distributed over the multiprocessors in waves; a wave that is not full
    takes as long as a full one. At least the time to read the operands from memory.
    Raises `InvalidInput` for negative sizes.
    """
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
    """Return the seconds of operations that only read and write `nbytes` bytes."""
    check_number("nbytes", nbytes, min=0)
    check_number("kernels", kernels, min=0)
    return nbytes / (device.memory_bandwidth * device.memory_share) + kernels * KERNEL


def flash_seconds(
    device: Device, flops: float, head_size: float, kind: str
) -> tuple[float, float]:
    """Return forward and backward seconds of fused causal attention.

    `flops` are those of the whole square, forward; the mask halves them, and the
    backward pass has 2.5 times as many. `kind` is flash or cudnn.
    """
    small, large = FLASH_AMPERE if device.generation == "ampere" else FLASH[kind]
    weight = min(max((head_size - 64) / 64, 0.0), 1.0)
    rates = [a + weight * (b - a) for a, b in zip(small, large, strict=True)]
    forward, backward = (device.flops * rate for rate in rates)
    return flops / 2 / forward, 2.5 * flops / 2 / backward


@dataclass(frozen=True)
class Work:
    """Seconds on the GPU and calls of the host, forward and backward."""

    forward: float
    backward: float
    forward_calls: float = 0.0
    backward_calls: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.forward + other.forward, self.backward + other.backward,
            self.forward_calls + other.forward_calls,
            self.backward_calls + other.backward_calls,
        )  # fmt: skip

    def times(self, count: float) -> Work:
        """Return the work of `count` layers like this one."""
        return Work(
            self.forward * count, self.backward * count,
            self.forward_calls * count, self.backward_calls * count,
        )  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A layer of `model` for `micro_batch` examples, split over `tensor` GPUs."""

    model: Transformer
    cluster: Cluster
    software: Software
    micro_batch: int
    tensor: int
    sequence: bool  # sequence parallelism: norms are split too

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.model.sequence

    def product(self, m: float, n: float, k: float) -> float:
        """Return the seconds of one matrix multiplication."""
        return matmul_seconds(self.cluster.device, m, n, k)

    def collective(self, kind: str, nbytes: float | None = None) -> float:
        """Return the seconds of a collective, by default of one activation."""
        if nbytes is None:
            nbytes = 2.0 * self.tokens * self.model.hidden
        per_node = min(self.tensor, self.cluster.per_node)
        return nccl_seconds(kind, nbytes, self.tensor, self.cluster, per_node)

    def attention(self) -> tuple[float, float]:
        """Return forward and backward seconds of attention itself."""
        model, device = self.model, self.cluster.device
        scores = self.micro_batch * model.heads / self.tensor * model.sequence**2
        size = model.hidden / model.heads
        flops = 4.0 * scores * size
        if self.software.attention != "unfused":
            return flash_seconds(device, flops, size, self.software.attention)
        # Memory traffic per score: product 2, softmax 4, dropout 5, product 2 bytes.
        product = flops / (device.flops * device.matmul_share * 0.85)
        forward = product + memory_seconds(device, 13 * scores, 4)
        return forward, 2 * product + memory_seconds(device, 21 * scores, 6)


def layer_work(s: Split) -> Work:
    """Return the work of a layer: four multiplications, attention, memory traffic."""
    m, software = s.model, s.software
    parts = [
        _column(s, m.qkv), _row(s, m.hidden), _column(s, m.up), _row(s, m.ffn),
        s.attention(),
    ]  # fmt: skip
    forward, backward = (sum(times) for times in zip(*parts, strict=True))
    share = s.tensor if s.sequence else 1
    moved = [
        s.tokens
        * (a * m.hidden / share + b * m.hidden / s.tensor + c * m.up / s.tensor)
        for a, b, c in (software.forward_bytes, software.backward_bytes)
    ]
    device = s.cluster.device
    forward += memory_seconds(device, moved[0], software.kernels[0])
    backward += memory_seconds(device, moved[1], software.kernels[1])
    calls = software.split_calls if s.tensor > 1 else software.calls
    return Work(forward, backward, *calls)


def _column(s: Split, width: float) -> tuple[float, float]:
    """Return the seconds of a column-parallel layer of `width` outputs."""
    T, h, n = s.tokens, s.model.hidden, width / s.tensor
    data, weight = s.product(T, h, n), s.product(n, h, T)
    if s.tensor == 1:
        return s.product(T, n, h), data + weight
    forward, overlap = s.product(T, n, h), s.software.overlap
    if not s.sequence:  # the input's gradient is all-reduced in the backward pass
        total = s.collective("allreduce")
        if overlap == "none":
            return forward, data + weight + total
        return forward, data + concurrent(weight, total, s.cluster)
    gather, scatter = s.collective("allgather"), s.collective("reduce_scatter")
    back = concurrent(data, gather, s.cluster) + concurrent(weight, scatter, s.cluster)
    if overlap == "own shard":  # local tokens' multiplication hides the gather
        rest = 2 * s.product(T * (s.tensor - 1) / s.tensor / 2, n, h)
        local = s.product(T / s.tensor, n, h)
        return concurrent(local, gather, s.cluster) + rest, back
    if overlap == "chunks":  # product and transfer in as many pieces as there are GPUs
        overlapped = concurrent(forward, gather, s.cluster)
        return overlapped + min(forward, gather) / s.tensor, back
    return forward + gather, back


def _row(s: Split, width: float) -> tuple[float, float]:
    """Return the seconds of a row-parallel layer of `width` inputs."""
    T, h, k = s.tokens, s.model.hidden, width / s.tensor
    forward, data, weight = s.product(T, h, k), s.product(T, k, h), s.product(k, h, T)
    if s.tensor == 1:
        return forward, data + weight
    if not s.sequence:
        return forward + s.collective("allreduce"), data + weight
    gather, scatter = s.collective("allgather"), s.collective("reduce_scatter")
    if s.software.overlap == "own shard":
        rest = 2 * s.product(T * (s.tensor - 1) / s.tensor / 2, k, h)
        local = s.product(T / s.tensor, k, h)
        return forward + scatter, concurrent(local, gather, s.cluster) + rest + weight
    if s.software.overlap == "chunks":
        overlapped = (
            concurrent(forward, scatter, s.cluster) + min(forward, scatter) / s.tensor
        )
        back = concurrent(data, gather, s.cluster) + min(data, gather) / s.tensor
        return overlapped, back + weight
    return forward + scatter, data + weight + gather


def head_work(s: Split) -> tuple[Work, Work]:
    """Return the work of the output head, and of the loss in float32."""
    T, h, v = s.tokens, s.model.hidden, s.model.vocabulary / s.tensor
    gather = s.collective("allgather") if s.sequence and s.tensor > 1 else 0.0
    total = 0.0
    if s.tensor > 1:
        total = s.collective("reduce_scatter" if s.sequence else "allreduce")
    back = s.product(T, h, v) + s.product(v, h, T)
    head = Work(s.product(T, v, h) + gather, back + total)
    # Cast 6, maximum 4, subtract 8, exp 8, sum 4, divide 8 bytes; back: 8 and cast 6.
    sums = 3 * s.collective("allreduce", 4.0 * T) if s.tensor > 1 else 0.0
    device = s.cluster.device
    loss = Work(
        memory_seconds(device, 38.0 * T * v, 12) + sums,
        memory_seconds(device, 14.0 * T * v, 4), 25, 15,
    )  # fmt: skip
    return head, loss
