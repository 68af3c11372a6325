"""The time of one training step of a transformer, and the memory that it needs.

It models the stages of a pipeline, the host that launches every kernel, the replicas'
collectives during the passes, and the optimizer. Constants are from data sheets and
published latencies, none from the tables of `validate`. ZeRO 2 reduces the gradients of
every micro-batch, and ZeRO 3 gathers each layer's weights before each pass, during the
layer before it (Rajbhandari et al., 2020). Chapter: *cost_model*.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from .cost import spans
from .hardware import Cluster
from .layer_time import Split, Work, head_work, layer_work, memory_seconds
from .layout import (
    Footprint,
    ImpossibleLayout,
    Layout,
    Stage,
    buckets,
    cut_layers,
    footprint,
    owners,
    stage_parameters,
)  # fmt: skip
from .nccl import US, concurrent, nccl_seconds
from .networks import CALL, NANOTRON, Software, Transformer


def shard_seconds(split: Split, layout: Layout, stage: Stage, work: Work) -> Work:
    """Return the work of a micro-batch with the collectives of ZeRO 2 and 3.

    There is one per layer and one for each end. The first gather and the last
    reduce-scatter are not hidden.
    """
    if layout.data == 1 or layout.zero < 2:
        return work
    model, software = split.model, split.software
    layers = [model.layer_parameters / layout.tensor] * round(stage.layers)
    ends = (stage.embedding + stage.head) * [model.embedding_parameters / layout.tensor]
    if model.tied:
        ends = ends[:1]
    gather, scatter = (
        [_collective(kind, split, layout, size * n) for n in (*layers, *ends)]
        for kind, size in (
            ("allgather", 2),
            ("reduce_scatter", software.gradient_bytes),
        )
    )
    if layout.zero < 3:
        gather = [0.0]
    if not gather or not scatter:
        return work
    return Work(
        _hidden(split, work.forward, sum(gather), gather[0]),
        _hidden(split, work.backward, sum(gather) + sum(scatter), scatter[0]),
    )


def _hidden(split: Split, compute: float, messages: float, bare: float) -> float:
    """Return the seconds of a pass with its messages, of which `bare` is exposed."""
    if not split.software.overlap_data:
        return compute + messages
    return concurrent(compute, messages - bare, split.cluster) + bare


def gradient_seconds(
    split: Split, layout: Layout, stages: list[Stage], weights: list[float],
    works: list[Work],
) -> float:  # fmt: skip
    """Return the exposed seconds of the collectives at the end of a step."""
    total = _tied_ends(split, layout)
    if layout.data == 1:
        return total
    if layout.zero < 2:
        exposed = [
            _exposed(split, layout, stage, weights[i], works[: i + 1])
            for i, stage in enumerate(stages)
        ]
        total += max(0.0, *exposed)
    if layout.zero in (1, 2):
        total += _new_weights(split, layout, max(weights), works[0].forward)
    return total


def _exposed(
    split: Split, layout: Layout, stage: Stage, weights: float, works: list[Work]
) -> float:
    """Return the exposed seconds of a stage's reductions.

    They overlap with its last backward pass and those of earlier stages. `works` ends
    with the stage's own. A bucket is reduced when its gradients are ready; the
    embedding's is the last.
    """
    software, sharded = split.software, layout.zero > 0
    sizes = buckets(split.model, layout, stage, weights, software.bucket)
    if not sizes:
        return 0.0
    kind = "reduce_scatter" if sharded else "allreduce"
    times = {
        size: _collective(kind, split, layout, software.gradient_bytes * size)
        for size in set(sizes)
    }
    costs = [times[size] for size in sizes]
    window, exposed = works[-1].backward, sum(costs)
    if sharded and software.shards_wait:  # flattened before and after
        exposed += memory_seconds(split.cluster.device, 16 * weights, 0)
    elif software.overlap_data:
        sums = list(itertools.accumulate(sizes))
        ready = [window * m / sums[-1] for m in sums]
        hidden = exposed
        exposed = spans(ready, costs)[-1][1] - window
        hidden -= exposed
        exposed += concurrent(window, hidden, split.cluster) - window
    return exposed - sum(work.backward for work in works[:-1])


def _new_weights(split: Split, layout: Layout, weights: float, forward: float) -> float:
    """Return the exposed seconds of ZeRO 1 and 2's all-gather of new weights."""
    gather = _collective("allgather", split, layout, 2 * weights)
    if layout.zero == 1 and split.software.shards_wait:  # flattened, and copied back
        return gather + memory_seconds(split.cluster.device, 8 * weights, 0)
    return max(0.0, gather - forward)


def _tied_ends(split: Split, layout: Layout) -> float:
    """Return the seconds to sum the tied matrix of the first and the last stage."""
    if not split.model.tied or layout.pipeline == 1:
        return 0.0
    far = layout.data * layout.tensor >= split.cluster.per_node
    size = 4 * split.model.embedding_parameters / layout.tensor
    return nccl_seconds("allreduce", size, 2, split.cluster, 1 if far else 2)


def _collective(kind: str, split: Split, layout: Layout, nbytes: float) -> float:
    """Return the seconds of a collective over the replicas of a tensor shard."""
    near = max(1, min(layout.data, split.cluster.per_node // layout.tensor))
    return nccl_seconds(kind, nbytes, layout.data, split.cluster, near)


@dataclass(frozen=True)
class Step:
    """One step: its seconds by part, and the largest peak memory."""

    seconds: float
    tokens: int
    gpus: int
    stages: float  # the pipeline with its bubble
    gradients: float  # the exposed data-parallel communication
    optimizer: float
    memory: Footprint
    flops: float
    peak: float

    @property
    def tokens_per_gpu(self) -> float:
        """Return the tokens per second and GPU."""
        return self.tokens / self.seconds / self.gpus

    @property
    def utilization(self) -> float:
        """Return the model's operations over the peak of all GPUs (MFU)."""
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
    """Return the work of one micro-batch in one stage, at least the host's time."""
    layer = layer_work(split)
    recomputed = Work(0, 0)
    if layout.recompute == "full":
        recomputed = Work(0, layer.forward, 0, layer.forward_calls)
    elif layout.recompute == "selective":
        recomputed = Work(0, split.attention()[0])
    head, loss = head_work(split)
    work = (layer + recomputed).times(stage.layers)
    work += (head + loss).times(stage.head)
    # Gradients of 16 bits are added to sums of 32 after every micro-batch.
    device = split.cluster.device
    sums = split.software.accumulate_bytes * weights / owners(layout, 2)
    forward, backward = work.forward, work.backward + memory_seconds(device, sums, 0)
    forward_host, backward_host = work.forward_calls * CALL, work.backward_calls * CALL
    if layout.pipeline == 1:  # the host may run ahead in both passes
        backward = max(forward + backward, forward_host + backward_host) - forward
        return shard_seconds(split, layout, stage, Work(forward, backward))
    forward, backward = max(forward, forward_host), max(backward, backward_host)
    send, back = _messages(split, layout)
    work = shard_seconds(split, layout, stage, Work(forward, backward))
    return work + Work(send, back)


def _messages(split: Split, layout: Layout) -> tuple[float, float]:
    """Return the seconds of a stage's messages to its neighbors in both passes."""
    cluster, T, h = split.cluster, split.tokens, split.model.hidden
    far = layout.data * layout.tensor >= cluster.per_node  # tensor inside, pipeline out
    hop = cluster.between.latency if far else 10 * US
    speed = cluster.nic_per_device if far else cluster.inside.bandwidth
    nbytes = 2.0 * T * h
    if split.software.handshakes:  # the shapes go first, and the host reads them
        size = nbytes / (split.tensor if split.sequence else 1)
        hops = split.software.handshakes * 3
        forward = hops * (hop + 2 * CALL) + 20 * CALL + size / speed
        return forward, hops / 2 * (hop + 2 * CALL) + 10 * CALL + size / speed
    # Each rank sends a slice; the slices are gathered inside the node.
    message = hop + nbytes / split.tensor / speed
    if not split.sequence and split.tensor > 1:
        message += split.collective("allgather")
    return layout.chunks * message, layout.chunks * message


def _pipeline(works: list[Work], layout: Layout) -> float:
    """Return the seconds of a pipeline, which its slowest stage limits."""
    times = [work.forward + work.backward for work in works]
    if layout.chunks > 1:
        return max(times) * (layout.micro_batches + (len(times) - 1) / layout.chunks)
    return sum(times) + (layout.micro_batches - 1) * max(times)


def _optimizer(split: Split, layout: Layout, weights: float) -> float:
    """Return the optimizer's seconds: 16 bytes per gradient, 34 per own weight."""
    moved = weights * (16 / owners(layout, 2) + 34 / owners(layout, 1))
    calls = 5 * 6 * split.model.layers / layout.pipeline  # a tensor, six a layer
    return memory_seconds(split.cluster.device, moved, 0) + calls * CALL
