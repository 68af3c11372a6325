"""A layout (data x tensor x pipeline x ZeRO, recomputation) and the memory it needs.

The layers of each stage, and its bytes: `needed` must fit; `reserved` is the memory of
an allocator that keeps the buffers of messages in flight. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2lmulti.checks import MAX_RANKS, check_choice, check_count
from d2lmulti.errors import InvalidInput

from .networks import Software, Transformer


class ImpossibleLayout(InvalidInput):
    """A model cannot be split that way, with any amount of memory."""


RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """How a step is split; `batch` is data x micro_batch x micro_batches examples.

    `zero`: what is sharded over the replicas: 0 nothing, 1 the optimizer's state, 2
    also the gradients, 3 also the weights. `chunks`: stages per device (interleaved).
    `sequence`: sequence parallelism next to tensor parallelism.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    zero: int = 0
    recompute: str = "none"
    chunks: int = 1
    sequence: bool = True

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline"):
            check_count(name, getattr(self, name), max=MAX_RANKS)
        for name in ("micro_batch", "micro_batches", "chunks"):
            check_count(name, getattr(self, name), max=2**31)
        check_count("zero", self.zero, min=0, max=3, hint="use ZeRO 0, 1, 2 or 3")
        check_choice("recompute", self.recompute, RECOMPUTE)

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of the layout."""
        return self.data * self.tensor * self.pipeline

    @property
    def batch(self) -> int:
        """Return the number of examples of one step."""
        return self.data * self.micro_batch * self.micro_batches

    def __str__(self) -> str:
        words = f"data {self.data} x tensor {self.tensor} x pipeline {self.pipeline}"
        more = f", {self.micro_batches} micro-batches of {self.micro_batch}"
        return f"{words}, ZeRO {self.zero}{more}"


def owners(layout: Layout, zero: int) -> int:
    """Return the number of devices over which this stage of ZeRO shards, or 1."""
    return layout.data if layout.zero >= zero else 1


@dataclass
class Stage:
    """The layers of one device of a pipeline; their number may be fractional."""

    layers: float = 0
    embedding: bool = False
    head: bool = False  # and the loss: logits would be the largest message of all


def cut_layers(model: Transformer, layout: Layout, software: Software) -> list[Stage]:
    """Distribute the layers over the stages, evenly or by cost.

    By cost: a stage is full once it has reached its fraction of all weights, including
    the head's (nanotron's build_model). Raises `ImpossibleLayout` for more stages
    than layers.
    """
    p = layout.pipeline
    if p * layout.chunks > model.layers + 5:  # norm, casts and ends are blocks too
        raise ImpossibleLayout(
            f"expected at most one stage for each of {model.layers} layers, got "
            f"{p * layout.chunks} stages; use a shorter pipeline"
        )
    stages = [Stage() for _ in range(p)]
    if not software.cut_by_cost:
        for stage in stages:
            stage.layers = model.layers / p
        stages[0].embedding = stages[-1].head = True
        return stages
    weight, ends = float(model.layer_parameters), float(model.embedding_parameters)
    blocks = ["embedding", *["layer"] * model.layers, "head"]
    costs = {"layer": weight, "head": ends}
    total, done, i = model.layers * weight + ends, 0.0, 0
    for block in blocks:
        if block == "layer":
            stages[i].layers += 1
        else:
            setattr(stages[i], block, True)
        done += costs.get(block, 0.0)
        if done > total * (i + 1) / p and i < p - 1:
            i += 1
    return stages


def stage_parameters(model: Transformer, layout: Layout, stage: Stage) -> float:
    """Return the number of weights of a stage on one device."""
    ends = stage.embedding + stage.head
    if model.tied and stage.embedding and stage.head:
        ends = 1
    weights = stage.layers * model.layer_parameters + ends * model.embedding_parameters
    return weights / layout.tensor


def buckets(
    model: Transformer,
    layout: Layout,
    stage: Stage,
    weights: float,
    min_bytes: float | None,
) -> list[float]:
    """Return the sizes of a stage's gradient buckets, in the order of their reduction.

    As in PyTorch's DistributedDataParallel: the last tensor is first, and a bucket is
    closed when it has `min_bytes` bytes (16 bits per gradient) or more. The embedding's
    matrix is the last, and larger than a bucket. None: all in one.
    """
    ends = model.embedding_parameters / layout.tensor
    if min_bytes is None:
        return [weights] if weights else []
    h = model.hidden / layout.tensor
    layer = [model.ffn * h, model.up * h, model.hidden * h, model.qkv * h]
    tensors = layer * round(stage.layers)
    if stage.head and not (model.tied and stage.embedding):
        tensors = [ends, *tensors]
    sizes, size = [], 0.0
    for tensor in tensors:
        size += tensor
        if 2 * size >= min_bytes:
            sizes.append(size)
            size = 0.0
    return [n for n in (*sizes, size, ends * stage.embedding) if n]


@dataclass(frozen=True)
class Footprint:
    """Bytes: the peak of any device (`needed`), and the first stage (`reserved`)."""

    needed: float
    reserved: float
    states: float  # of that device: weights, gradients, optimizer
    activations: float


def footprint(model: Transformer, layout: Layout, software: Software) -> Footprint:
    """Return the peak memory, at the end of a forward pass.

    Per weight: 2 bytes in 16 bits, 4 of summed gradients, 12 of Adam in 32 bits (master
    copy and two averages). ZeRO 1 divides the last by the replicas, ZeRO 2 the last
    two, ZeRO 3 all three. Reserved in addition: 2 of the gradients in 16 bits, and the
    two gathered inputs of a layer.
    """
    stages = cut_layers(model, layout, software)
    states, activations = [], []
    for i, stage in enumerate(stages):
        states.append(_states(model, layout, stage, software))
        activations.append(_activations(model, layout, stage, i))
    sums = [a + b for a, b in zip(states, activations, strict=True)]
    fullest = max(range(len(sums)), key=sums.__getitem__)
    reserved = states[0] + activations[0]
    if owners(layout, 2) == 1:  # else a layer's, which are among the states
        reserved += 2 * stage_parameters(model, layout, stages[0])
    if layout.tensor > 1 and layout.sequence and layout.recompute == "none":
        gathered = 4 * model.hidden * layout.micro_batch * model.sequence
        reserved += _in_flight(layout, 0) * stages[0].layers * gathered
    return Footprint(sums[fullest], reserved, states[fullest], activations[fullest])


def _states(
    model: Transformer, layout: Layout, stage: Stage, software: Software
) -> float:
    """Return the bytes of a stage's weights, gradients, and optimizer state.

    With ZeRO 2, the gradients of one layer are unsharded, 2 bytes each; with ZeRO 3
    also the weights of two layers: the current one and the next.
    """
    weights = stage_parameters(model, layout, stage)
    per_weight = 2 / owners(layout, 3) + 12 / owners(layout, 1)
    nbytes = weights * (per_weight + software.gradient_bytes / owners(layout, 2))
    if weights and owners(layout, 2) > 1:  # temporarily unsharded: a layer, or an end
        ends = model.embedding_parameters * (stage.embedding or stage.head)
        piece = max(model.layer_parameters, ends) / layout.tensor
        nbytes += piece * (6 if owners(layout, 3) > 1 else 2)
    return nbytes


def _activations(model: Transformer, layout: Layout, stage: Stage, i: int) -> float:
    """Return the bytes that a stage stores for the backward pass, 2 per element.

    Norms, residuals, queries, keys, values, the attention's output and the MLP's three
    tensors: 18 hidden + 8 widths. Recomputed in full: a layer's input. The loss: logits
    in 16 and 32 bits, their exponents, their gradient in 16.
    """
    tokens = layout.micro_batch * model.sequence
    share = layout.tensor if layout.sequence else 1
    inner = 10 * model.hidden + 8 * model.ffn * (model.up / (2 * model.ffn))
    per_token = 8 * model.hidden / share + inner / layout.tensor
    if layout.recompute == "full":
        per_token = 2 * model.hidden / share
    nbytes = _in_flight(layout, i) * stage.layers * tokens * per_token
    if stage.head:
        nbytes += 12.0 * tokens * model.vocabulary / layout.tensor
    return nbytes


def _in_flight(layout: Layout, stage: int) -> int:
    """Return the number of micro-batches that a stage of 1F1B stores at once."""
    return min(layout.micro_batches, layout.pipeline - stage)
