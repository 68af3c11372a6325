"""What data parallelism adds to a step: sums of gradients, shards, and what hides them.

Without shards and with ZeRO 1, all gradients are summed once a step, beside the last
way back. ZeRO 2 sums those of every micro-batch, and ZeRO 3 gathers the weights of
every layer before each pass (Rajbhandari et al., 2020, section 7), beside the layer
before it, as PyTorch's fully_shard does. Chapter: *cost_model*.
"""

from __future__ import annotations

import itertools

from .kernels import memory_seconds
from .layer_time import Split, Work
from .layout import Layout, Stage, buckets
from .nccl import beside, nccl_seconds
from .overlap import spans


def shard_seconds(split: Split, layout: Layout, stage: Stage, work: Work) -> Work:
    """One micro-batch of a stage with the messages that ZeRO 2 and 3 send for it.

    A message a layer, and one for each end: what the first pass needs first and the
    last one makes last, nothing hides.
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
    """A pass with its messages, of which nothing hides `bare`."""
    if not split.software.overlap_data:
        return compute + messages
    return beside(compute, messages - bare, split.cluster) + bare


def gradient_seconds(
    split: Split, layout: Layout, stages: list[Stage], weights: list[float],
    works: list[Work],
) -> float:  # fmt: skip
    """What the collectives at the end of a step add, beyond what hides them."""
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
    """A stage's sums, beside its last way back and the ways back of stages before it.

    `works` ends with the stage's own. A bucket can go when its gradients are there; the
    embedding's is the last to be made.
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
        made = list(itertools.accumulate(sizes))
        ready = [window * m / made[-1] for m in made]
        hidden = exposed
        exposed = spans(ready, costs)[-1][1] - window
        hidden -= exposed
        exposed += beside(window, hidden, split.cluster) - window
    return exposed - sum(work.backward for work in works[:-1])


def _new_weights(split: Split, layout: Layout, weights: float, forward: float) -> float:
    """ZeRO 1 and 2 gather the new weights, in 16 bits, before or beside a way there."""
    gather = _collective("allgather", split, layout, 2 * weights)
    if layout.zero == 1 and split.software.shards_wait:  # flattened, and copied back
        return gather + memory_seconds(split.cluster.device, 8 * weights, 0)
    return max(0.0, gather - forward)


def _tied_ends(split: Split, layout: Layout) -> float:
    """Where the first and the last stage have a copy of one matrix: sum it up."""
    if not split.model.tied or layout.pipeline == 1:
        return 0.0
    far = layout.data * layout.tensor >= split.cluster.per_node
    size = 4 * split.model.embedding_parameters / layout.tensor
    return nccl_seconds("allreduce", size, 2, split.cluster, 1 if far else 2)


def _collective(kind: str, split: Split, layout: Layout, nbytes: float) -> float:
    """Seconds over the replicas of a slice; a node fills with slices, then replicas."""
    near = max(1, min(layout.data, split.cluster.per_node // layout.tensor))
    return nccl_seconds(kind, nbytes, layout.data, split.cluster, near)
