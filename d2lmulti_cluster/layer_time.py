"""How long one layer of a transformer takes, forward and backward, split over GPUs.

Products, attention, everything that only moves bytes, and the collectives of tensor
parallelism (this book's layer parallelism), some of them beside a product.
"""

from __future__ import annotations

from dataclasses import dataclass

from .hardware import Cluster
from .kernels import flash_seconds, matmul_seconds, memory_seconds
from .nccl import beside, nccl_seconds
from .networks import Transformer
from .software import Software


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
        """The work of so many layers like this one."""
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
        """Tokens of one micro-batch."""
        return self.micro_batch * self.model.sequence

    def product(self, m: float, n: float, k: float) -> float:
        """Seconds of one matrix product."""
        return matmul_seconds(self.cluster.device, m, n, k)

    def collective(self, kind: str, nbytes: float | None = None) -> float:
        """Seconds of a collective over the split; by default of one activation."""
        if nbytes is None:
            nbytes = 2.0 * self.tokens * self.model.hidden
        per_node = min(self.tensor, self.cluster.per_node)
        return nccl_seconds(kind, nbytes, self.tensor, self.cluster, per_node)

    def attention(self) -> tuple[float, float]:
        """Forward and backward seconds of the attention's core."""
        model, device = self.model, self.cluster.device
        scores = self.micro_batch * model.heads / self.tensor * model.sequence**2
        size = model.hidden / model.heads
        flops = 4.0 * scores * size
        if self.software.attention != "unfused":
            return flash_seconds(device, flops, size, self.software.attention)
        # The scores pass the memory: product 2, softmax 4, dropout 5, product 2 bytes.
        product = flops / (device.flops * device.matmul_share * 0.85)
        forward = product + memory_seconds(device, 13 * scores, 4)
        return forward, 2 * product + memory_seconds(device, 21 * scores, 6)


def layer_work(s: Split) -> Work:
    """Add up a layer: two products by columns, two by rows, attention, bytes."""
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
    """A product from all features to a slice of `width`: forward, backward."""
    T, h, n = s.tokens, s.model.hidden, width / s.tensor
    data, weight = s.product(T, h, n), s.product(n, h, T)
    if s.tensor == 1:
        return s.product(T, n, h), data + weight
    forward, how = s.product(T, n, h), s.software.overlap
    if not s.sequence:  # the input's gradient is summed up on the way back
        total = s.collective("allreduce")
        if how == "none":
            return forward, data + weight + total
        return forward, data + beside(weight, total, s.cluster)
    gather, scatter = s.collective("allgather"), s.collective("reduce_scatter")
    back = beside(data, gather, s.cluster) + beside(weight, scatter, s.cluster)
    if how == "own shard":  # the gather hides behind the product of what is here
        rest = 2 * s.product(T * (s.tensor - 1) / s.tensor / 2, n, h)
        own = s.product(T / s.tensor, n, h)
        return beside(own, gather, s.cluster) + rest, back
    if how == "chunks":  # product and transfer in as many pieces as there are GPUs
        both = beside(forward, gather, s.cluster)
        return both + min(forward, gather) / s.tensor, back
    return forward + gather, back


def _row(s: Split, width: float) -> tuple[float, float]:
    """A product from a slice of `width` to all features: forward, backward."""
    T, h, k = s.tokens, s.model.hidden, width / s.tensor
    forward, data, weight = s.product(T, h, k), s.product(T, k, h), s.product(k, h, T)
    if s.tensor == 1:
        return forward, data + weight
    if not s.sequence:
        return forward + s.collective("allreduce"), data + weight
    gather, scatter = s.collective("allgather"), s.collective("reduce_scatter")
    if s.software.overlap == "own shard":
        rest = 2 * s.product(T * (s.tensor - 1) / s.tensor / 2, k, h)
        own = s.product(T / s.tensor, k, h)
        return forward + scatter, beside(own, gather, s.cluster) + rest + weight
    if s.software.overlap == "chunks":
        there = beside(forward, scatter, s.cluster) + min(forward, scatter) / s.tensor
        back = beside(data, gather, s.cluster) + min(data, gather) / s.tensor
        return there, back + weight
    return forward + scatter, data + weight + gather


def head_work(s: Split) -> tuple[Work, Work]:
    """The product with the vocabulary, and the loss in float32: two pieces of work."""
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
