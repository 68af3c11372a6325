"""How long one training step of a transformer takes, and how much memory it needs.

Stages of a pipeline, the host that must ask for every kernel, the gradients' all-reduce
beside the last backward pass, and the optimizer: constants from specification sheets
and published latencies, none from the tables it is judged on. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..checks import check_kind
from .footprint import Footprint, footprint
from .hardware import Cluster
from .kernels import memory_seconds
from .layer_time import Split, Work, head_work, layer_work
from .layout import ImpossibleLayout, Layout, Stage, cut_layers, stage_parameters
from .nccl import US, beside, nccl_seconds
from .networks import Transformer
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

    >>> from d2lmulti.cluster.networks import get_network
    >>> from d2lmulti.cluster.presets import get_cluster
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
    exposed = _gradients(split, layout, stages, weights, works)
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
    work += head.times(stage.head) + loss.times(stage.loss)
    # Gradients of 16 bits are added to sums of 32 after every micro-batch.
    device = split.cluster.device
    sums = split.software.accumulate_bytes * weights
    forward, backward = work.forward, work.backward + memory_seconds(device, sums, 0)
    asked, asked_back = work.forward_calls * CALL, work.backward_calls * CALL
    if layout.pipeline == 1:  # nothing waits: the host may run ahead over both ways
        backward = max(forward + backward, asked + asked_back) - forward
    else:
        forward, backward = max(forward, asked), max(backward, asked_back)
        there, back = _messages(split, layout, stage)
        forward, backward = forward + there, backward + back
    return Work(forward, backward)


def _messages(split: Split, layout: Layout, stage: Stage) -> tuple[float, float]:
    """Seconds that a stage's messages to its neighbours take, forward and backward."""
    cluster, T, h = split.cluster, split.tokens, split.model.hidden
    far = layout.data * layout.tensor >= cluster.per_node  # tensor inside, pipeline out
    hop = cluster.between.latency if far else 10 * US
    speed = cluster.nic_per_device if far else cluster.inside.bandwidth
    whole = 2.0 * T * h
    if split.software.handshakes:  # the shapes go first, and the host reads them
        size = whole / (split.tensor if split.sequence else 1)
        if stage.head != stage.loss:
            size = 2.0 * T * split.model.vocabulary / split.tensor
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


def _gradients(
    split: Split, layout: Layout, stages: list[Stage], weights: list[float],
    works: list[Work],
) -> float:  # fmt: skip
    """What the collectives of data parallelism add, beyond what hides them."""
    total = _tied_ends(split, layout)
    if layout.data == 1:
        return total
    exposed = [
        _exposed(split, layout, stage, weights[i], works[: i + 1])
        for i, stage in enumerate(stages)
    ]
    total += max(0.0, *exposed)
    if layout.zero:
        total += _new_weights(split, layout, max(weights), works[0].forward)
    return total


def _exposed(
    split: Split, layout: Layout, stage: Stage, weights: float, works: list[Work]
) -> float:
    """A stage's sums, beside its last way back and the ways back of stages before it.

    `works` ends with the stage's own. The embedding's gradient is the last to be made.
    """
    cluster, software, sharded = split.cluster, split.software, layout.zero > 0
    ends = split.model.embedding_parameters / layout.tensor * stage.embedding
    pieces = 1
    if software.bucket:
        pieces = max(1, round((weights - ends) * 2 / software.bucket))

    def seconds(elements: float) -> float:
        kind = "reduce_scatter" if sharded else "allreduce"
        size = software.gradient_bytes * elements
        return nccl_seconds(kind, size, layout.data, cluster, _near(split, layout))

    last = seconds(ends) if ends else 0.0
    part = seconds((weights - ends) / pieces)
    rest = pieces * part
    if sharded and software.bucket:  # flattened before and after
        rest += memory_seconds(cluster.device, 16 * weights, 0)
    window = works[-1].backward if software.overlap_data else 0.0
    hidden = min(rest, window * pieces / (pieces + 1))
    slowed = beside(window, hidden, cluster) - window if hidden else 0.0
    later = sum(work.backward for work in works[:-1])
    return max(rest - hidden, part) + last + slowed - later


def _new_weights(split: Split, layout: Layout, weights: float, forward: float) -> float:
    """ZeRO 1 gathers the new weights, in 16 bits, before or beside the way forward."""
    near = _near(split, layout)
    gather = nccl_seconds("allgather", 2 * weights, layout.data, split.cluster, near)
    if split.software.bucket:  # flattened and copied back; nothing runs meanwhile
        return gather + memory_seconds(split.cluster.device, 8 * weights, 0)
    return max(0.0, gather - forward)


def _tied_ends(split: Split, layout: Layout) -> float:
    """Where the first and the last stage have a copy of one matrix: sum it up."""
    if not split.model.tied or layout.pipeline == 1:
        return 0.0
    far = layout.data * layout.tensor >= split.cluster.per_node
    size = 4 * split.model.embedding_parameters / layout.tensor
    return nccl_seconds("allreduce", size, 2, split.cluster, 1 if far else 2)


def _near(split: Split, layout: Layout) -> int:
    """Replicas of a slice in one node: tensor parallelism goes first, data next."""
    return max(1, min(layout.data, split.cluster.per_node // layout.tensor))


def _optimizer(split: Split, layout: Layout, weights: float) -> float:
    """Clip 12, clear 4 bytes a weight; Adam and the copy 34 a weight of its own."""
    own = layout.data if layout.zero else 1
    moved = weights * (16 + 34 / own)
    calls = 5 * 6 * split.model.layers / layout.pipeline  # a tensor, six a layer
    return memory_seconds(split.cluster.device, moved, 0) + calls * CALL
