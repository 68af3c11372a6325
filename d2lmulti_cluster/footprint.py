"""How much memory a device needs: weights, gradients, optimizer, activations.

Two numbers, in bytes: `needed` must fit; `reserved` is what an allocator holds that
keeps the buffers of messages in flight. Chapter: *cost_model*.
"""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout, Stage, cut_layers, owners, stage_parameters
from .networks import Transformer
from .software import Software


@dataclass(frozen=True)
class Footprint:
    """Bytes of the fullest device (`needed`) and of the first stage (`reserved`)."""

    needed: float
    reserved: float
    states: float  # of the fullest: weights, gradients, optimizer
    activations: float


def footprint(model: Transformer, layout: Layout, software: Software) -> Footprint:
    """Count what lies in memory when it is fullest: at the end of a forward pass.

    A weight: 2 bytes in 16 bits, 4 of summed gradients, 12 of Adam in 32 bits (master
    copy and two averages). ZeRO 1 divides the last by the replicas, ZeRO 2 the last
    two, ZeRO 3 all three. Reserved beside them: 2 of the gradients in 16 bits, and the
    two gathered inputs of a layer.
    """
    stages = cut_layers(model, layout, software)
    states, kept = [], []
    for i, stage in enumerate(stages):
        states.append(_states(model, layout, stage, software))
        kept.append(_activations(model, layout, stage, i))
    sums = [a + b for a, b in zip(states, kept, strict=True)]
    fullest = max(range(len(sums)), key=sums.__getitem__)
    reserved = states[0] + kept[0]
    if owners(layout, 2) == 1:  # else a layer's, which are among the states
        reserved += 2 * stage_parameters(model, layout, stages[0])
    if layout.tensor > 1 and layout.sequence and layout.recompute == "none":
        gathered = 4 * model.hidden * layout.micro_batch * model.sequence
        reserved += _in_flight(layout, 0) * stages[0].layers * gathered
    return Footprint(sums[fullest], reserved, states[fullest], kept[fullest])


def _states(
    model: Transformer, layout: Layout, stage: Stage, software: Software
) -> float:
    """With ZeRO 2, the gradients of one piece are whole, 2 bytes each; with ZeRO 3 also
    the weights of two pieces: the one that is used, and the next.
    """
    weights = stage_parameters(model, layout, stage)
    a_weight = 2 / owners(layout, 3) + 12 / owners(layout, 1)
    held = weights * (a_weight + software.gradient_bytes / owners(layout, 2))
    if weights and owners(layout, 2) > 1:  # whole for a while: a layer, or an end
        ends = model.embedding_parameters * (stage.embedding or stage.head)
        piece = max(model.layer_parameters, ends) / layout.tensor
        held += piece * (6 if owners(layout, 3) > 1 else 2)
    return held


def _activations(model: Transformer, layout: Layout, stage: Stage, i: int) -> float:
    """What a stage keeps for the way back, 2 bytes an element, of all micro-batches.

    Norms, residuals, queries, keys, values, the attention's output and the MLP's three
    tensors: 18 hidden + 8 widths. Recomputed in full: a layer's input. The loss: logits
    in 16 and 32 bits, their exponents, their gradient in 16.
    """
    tokens = layout.micro_batch * model.sequence
    share = layout.tensor if layout.sequence else 1
    inner = 10 * model.hidden + 8 * model.ffn * (model.up / (2 * model.ffn))
    a_token = 8 * model.hidden / share + inner / layout.tensor
    if layout.recompute == "full":
        a_token = 2 * model.hidden / share
    held = _in_flight(layout, i) * stage.layers * tokens * a_token
    if stage.head:
        held += 12.0 * tokens * model.vocabulary / layout.tensor
    return held


def _in_flight(layout: Layout, stage: int) -> int:
    """Micro-batches that a stage of 1F1B holds at once."""
    return min(layout.micro_batches, layout.pipeline - stage)
