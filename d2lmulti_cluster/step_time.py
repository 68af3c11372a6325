"""How long one training step of a transformer takes, and how much memory it needs.

Stages of a pipeline, the host that must ask for every kernel, the replicas' messages
beside the passes, and the optimizer: constants from specification sheets and published
latencies, none from the tables it is judged on. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2lmulti.checks import check_kind

from .footprint import Footprint, footprint
from .hardware import Cluster
from .kernels import memory_seconds
from .layer_time import Split, Work, head_work, layer_work
from .layout import (
    ImpossibleLayout,
    Layout,
    Stage,
    cut_layers,
    owners,
    stage_parameters,
)  # fmt: skip
from .nccl import US
from .networks import Transformer
from .replicas import gradient_seconds, shard_seconds
from .software import CALL, NANOTRON, Software


@dataclass(frozen=True)
class Step:
    """One step: seconds, where they go, and the memory of the fullest device."""

    seconds: float
    tokens: int
    gpus: int
    stages: float  # the pipeline with its bubble
    gradients: float  # what of the data-parallel messages nothing hides
    optimizer: float
    memory: Footprint
    flops: float
    peak: float

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens a second on one GPU."""
        return self.tokens / self.seconds / self.gpus

    @property
    def utilisation(self) -> float:
        """The model's operations over the peak of all GPUs (MFU)."""
        return self.flops / self.seconds / self.gpus / self.peak


def step_time(
    model: Transformer, layout: Layout, cluster: Cluster, software: Software = NANOTRON
) -> Step:
    """Predict one step. Raises `InvalidInput` for a layout that the model cannot have.

    >>> from d2lmulti_cluster.networks import get_network
    >>> from d2lmulti_cluster.presets import get_cluster
    >>> layout = Layout(data=8, micro_batch=2, micro_batches=16, zero=1)
    >>> step = step_time(get_network("1B"), layout, get_cluster("dgx-h100"))
    >>> 1.2 < step.seconds * step.tokens_per_gpu * 8 / 1e6 / 0.8 < 1.4
    True
    """
    check_kind("model", model, Transformer, "a Transformer", "see get_network(name)")
    check_kind("layout", layout, Layout, "a Layout")
    check_kind("cluster", cluster, Cluster, "a Cluster", "see get_cluster(name)")
    check_kind("software", software, Software, "a Software")
    if model.heads % layout.tensor:
        raise ImpossibleLayout(
            f"expected a tensor-parallel size that divides {model.heads} heads, got "
            f"{layout.tensor}; use a divisor"
        )
    stages = cut_layers(model, layout, software)
    split = Split(
        model, cluster, software, layout.micro_batch, layout.tensor,
        layout.sequence and layout.tensor > 1,
    )  # fmt: skip
    weights = [stage_parameters(model, layout, stage) for stage in stages]
    works = [
        _stage_work(split, layout, stage, w)
        for stage, w in zip(stages, weights, strict=True)
    ]
    piped = _pipeline(works, layout)
    exposed = gradient_seconds(split, layout, stages, weights, works)
    update = _optimizer(split, layout, max(weights))
    tokens = layout.batch * model.sequence
    return Step(
        piped + exposed + update, tokens, layout.gpus, piped, exposed, update,
        footprint(model, layout, software), model.flops(tokens), cluster.device.flops,
    )  # fmt: skip


def _stage_work(split: Split, layout: Layout, stage: Stage, weights: float) -> Work:
    """One micro-batch through one stage: at least as long as the host needs to ask."""
    layer = layer_work(split)
    again = Work(0, 0)
    if layout.recompute == "full":
        again = Work(0, layer.forward, 0, layer.forward_calls)
    elif layout.recompute == "selective":
        again = Work(0, split.attention()[0])
    head, loss = head_work(split)
    work = (layer + again).times(stage.layers)
    work += (head + loss).times(stage.head)
    # Gradients of 16 bits are added to sums of 32 after every micro-batch.
    device = split.cluster.device
    sums = split.software.accumulate_bytes * weights / owners(layout, 2)
    forward, backward = work.forward, work.backward + memory_seconds(device, sums, 0)
    asked, asked_back = work.forward_calls * CALL, work.backward_calls * CALL
    if layout.pipeline == 1:  # nothing waits: the host may run ahead over both ways
        backward = max(forward + backward, asked + asked_back) - forward
        return shard_seconds(split, layout, stage, Work(forward, backward))
    forward, backward = max(forward, asked), max(backward, asked_back)
    there, back = _messages(split, layout)
    work = shard_seconds(split, layout, stage, Work(forward, backward))
    return work + Work(there, back)


def _messages(split: Split, layout: Layout) -> tuple[float, float]:
    """Seconds that a stage's messages to its neighbours take, forward and backward."""
    cluster, T, h = split.cluster, split.tokens, split.model.hidden
    far = layout.data * layout.tensor >= cluster.per_node  # tensor inside, pipeline out
    hop = cluster.between.latency if far else 10 * US
    speed = cluster.nic_per_device if far else cluster.inside.bandwidth
    whole = 2.0 * T * h
    if split.software.handshakes:  # the shapes go first, and the host reads them
        size = whole / (split.tensor if split.sequence else 1)
        asked = split.software.handshakes * 3
        there = asked * (hop + 2 * CALL) + 20 * CALL + size / speed
        return there, asked / 2 * (hop + 2 * CALL) + 10 * CALL + size / speed
    one = hop + whole / split.tensor / speed  # a slice each, gathered inside the node
    if not split.sequence and split.tensor > 1:
        one += split.collective("allgather")
    return layout.chunks * one, layout.chunks * one


def _pipeline(works: list[Work], layout: Layout) -> float:
    """Fill and drain over all stages; then the slowest sets the pace."""
    times = [work.forward + work.backward for work in works]
    if layout.chunks > 1:
        return max(times) * (layout.micro_batches + (len(times) - 1) / layout.chunks)
    return sum(times) + (layout.micro_batches - 1) * max(times)


def _optimizer(split: Split, layout: Layout, weights: float) -> float:
    """Clip 12, clear 4 bytes a gradient; Adam and the copy 34 a weight of its own."""
    moved = weights * (16 / owners(layout, 2) + 34 / owners(layout, 1))
    calls = 5 * 6 * split.model.layers / layout.pipeline  # a tensor, six a layer
    return memory_seconds(split.cluster.device, moved, 0) + calls * CALL
