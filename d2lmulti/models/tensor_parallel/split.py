"""A split network: layers whose parameters are shared out among the devices.

Every device runs the same layers on the whole batch, each with its part of the
parameters, and the layers yield requests wherever they need the others. A `ShardSpec`
says for each parameter of the whole network which part of it a device holds.
Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...errors import framework_errors
from ...plans.requests import CollectiveRequest
from ..model import Model, losses_of

Talk = Generator[CollectiveRequest, Any, Tensor]


class ShardSpec(NamedTuple):
    """How one parameter is shared out: along `dim`, or (None) every device has it all.

    `of` names what is counted along `dim`, in units of `unit` entries (a head has
    several columns). Where `blocks` matrices stand side by side in one parameter, each
    is cut for itself. `summed`: the devices see different tokens, so that the gradients
    of their copies are parts of a sum. `experts`: along dimension 0 lie experts, which
    are shared out along the axis `expert` of a mesh, whatever `dim` says.
    """

    dim: int | None = None
    of: str = ""
    blocks: int = 1
    unit: int = 1
    summed: bool = False
    experts: bool = False


REPLICATED = ShardSpec()
PARTIAL_GRADS = ShardSpec(summed=True)


class SequencePart(NamedTuple):
    """Which tokens a rank along `sequence` has, and how to attend to the others'."""

    positions: np.ndarray  # of this rank's tokens
    length: int  # of the sequence: the tokens of all ranks
    attend: Callable[..., Any]  # the function of an `Apply`, on queries, keys, values


class RankInfo(NamedTuple):
    """Whose part of the work it is: rank, number of ranks, shape of the batch X.

    On a mesh these are the rank's own X, and its place along `tensor`; there are
    `expert` ranks along that axis. `tokens` is None where it has all of a sequence.
    `targets` are the whole batch's, from before they were copied to the device.
    """

    rank: int
    ranks: int
    shape: tuple[int, ...]
    expert: int = 1
    tokens: SequencePart | None = None
    targets: Tensor | None = None


class SplitLayer(NamedTuple):
    """One layer: a cut for each of its parameters, and `forward(B, shards, X, part)`.

    `forward` is a plain function, or a generator that yields calls.
    """

    name: str
    cuts: tuple[ShardSpec, ...]
    forward: Callable[[Backend, Sequence[Tensor], Tensor, RankInfo], Any]


def whole_loss(B: Backend, logits: Tensor, y: Tensor, part: RankInfo) -> Tensor:
    """Compute the losses of all targets on every device, from whole logits."""
    return losses_of(B, logits, y, part.targets)


class SplitModel(NamedTuple):
    """A network in parts, and the `whole` network that it equals.

    `loss(B, logits, y, part)` gives the loss of every target, or yields calls first.
    """

    name: str
    whole: Model
    layers: tuple[SplitLayer, ...]
    loss: Callable[[Backend, Tensor, Tensor, RankInfo], Any] = whole_loss

    @property
    def cuts(self) -> list[tuple[str, ShardSpec]]:
        """The cut of every parameter, with the name of its layer."""
        return [(layer.name, cut) for layer in self.layers for cut in layer.cuts]


def run_split(
    B: Backend, model: SplitModel, shards: Sequence[Tensor], X: Tensor, part: RankInfo
) -> Talk:
    """Apply the layers to one device's shards; return its part of the logits."""
    first = 0
    for layer in model.layers:
        mine = shards[first : first + len(layer.cuts)]
        X = yield from named(layer.name, layer.forward(B, mine, X, part))
        first += len(layer.cuts)
    return X


def run_to_loss(
    B: Backend, model: SplitModel, shards: Sequence[Tensor], X: Tensor,
    y: Tensor | None, part: RankInfo,
) -> Talk:  # fmt: skip
    """Go on to the summed loss of the targets y; without them, give what there is."""
    with framework_errors(model.name, X):
        out = yield from run_split(B, model, shards, X, part)
        if y is None:
            return out
        losses = yield from named("loss", model.loss(B, out, y, part))
        return losses.sum()


def named(layer: str, forward: Any) -> Talk:
    """Run what may be a generator, and write the layer's name on its calls."""
    if not isinstance(forward, Generator):
        return forward
    answer = None
    while True:
        try:
            call = forward.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield replace(call, layer=layer)
