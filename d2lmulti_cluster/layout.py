"""A layout: data x tensor x pipeline x ZeRO, micro-batches, recomputation.

And which layers a stage gets. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2lmulti.checks import MAX_RANKS, check_choice, check_count, check_flag
from d2lmulti.errors import InvalidInput

from .networks import Transformer
from .software import Software


class ImpossibleLayout(InvalidInput):
    """A model cannot be cut that way, whatever the memory."""


RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """How a step is split. `batch` is data x micro_batch x micro_batches examples.

    `zero`: what the replicas divide among them: 0 nothing, 1 the optimizer's state, 2
    also the gradients, 3 also the weights. `chunks`: stages a device (interleaved).
    `sequence`: sequence parallelism beside tensor parallelism.
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
        check_flag("sequence", self.sequence)

    @property
    def gpus(self) -> int:
        """GPUs that the layout takes."""
        return self.data * self.tensor * self.pipeline

    @property
    def batch(self) -> int:
        """Examples of one step."""
        return self.data * self.micro_batch * self.micro_batches

    def __str__(self) -> str:
        words = f"data {self.data} x tensor {self.tensor} x pipeline {self.pipeline}"
        more = f", {self.micro_batches} micro-batches of {self.micro_batch}"
        return f"{words}, ZeRO {self.zero}{more}"


def owners(layout: Layout, zero: int) -> int:
    """Devices that share out what is sharded from this stage of ZeRO on, or 1."""
    return layout.data if layout.zero >= zero else 1


@dataclass
class Stage:
    """What lies on one device of a pipeline; layers may be a fraction on average."""

    layers: float = 0
    embedding: bool = False
    head: bool = False  # and the loss: logits would be the largest message of all


def cut_layers(model: Transformer, layout: Layout, software: Software) -> list[Stage]:
    """Deal the layers out to the stages, evenly or by cost.

    By cost: a stage is full once it has reached its share of all weights, the head's
    among them (nanotron's build_model). Raises `ImpossibleLayout` for more stages
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
    """Weights of a stage on one device."""
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
    least: float | None,
) -> list[float]:
    """Gradients of a stage in the order in which they are made, in whole tensors.

    As PyTorch's DistributedDataParallel fills them: the last tensor first, and a bucket
    is closed when it holds `least` bytes (of 16 bits a gradient) or more. The
    embedding's matrix is the last, and larger than a bucket. None: all in one.
    """
    ends = model.embedding_parameters / layout.tensor
    if least is None:
        return [weights] if weights else []
    h = model.hidden / layout.tensor
    layer = [model.ffn * h, model.up * h, model.hidden * h, model.qkv * h]
    tensors = layer * round(stage.layers)
    if stage.head and not (model.tied and stage.embedding):
        tensors = [ends, *tensors]
    found, size = [], 0.0
    for tensor in tensors:
        size += tensor
        if 2 * size >= least:
            found.append(size)
            size = 0.0
    return [n for n in (*found, size, ends * stage.embedding) if n]
