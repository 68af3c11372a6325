"""Split networks: every device runs the same layers, each with its shards.

Every device has the whole batch, and the layers yield a request for each collective.
Split by outputs, a device computes some of the columns (channels) from a whole input;
split by inputs, it computes a partial sum of all outputs from some of the columns. So
the second uses the outputs of the first, and a pair of them communicates once in each
direction. Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...comm.cooperative import CommGenerator, Copy, Reduce
from ..networks import (
    Layer,
    Model,
    convolution,
    dense,
    dense_relu,
    framework_errors,
    losses_of,
)


class ShardSpec(NamedTuple):
    """How one parameter is sharded: along `dim`, or (None) replicated.

    `of` names the items along `dim`, of `unit` entries each (a head has several
    columns). Where one parameter holds `blocks` matrices side by side, each is cut
    separately. `experts`: dimension 0 counts experts, which are sharded along the
    axis `expert` of a mesh, whatever `dim` says.
    """

    dim: int | None = None
    of: str = ""
    blocks: int = 1
    unit: int = 1
    experts: bool = False


REPLICATED = ShardSpec()


class SequencePart(NamedTuple):
    """The tokens of a rank along `sequence`, and how to attend to the others'."""

    positions: np.ndarray  # of this rank's tokens
    length: int  # of the sequence: the tokens of all ranks
    attend: Callable[..., Any]  # the function of an `Apply`, on queries, keys, values


class RankInfo(NamedTuple):
    """A device's part of the work: rank, number of ranks, shape of the batch X.

    On a mesh these are the rank's own X and its coordinate along `tensor`; there are
    `expert` ranks along that axis. `tokens` is None where it has all of a sequence.
    `targets` are the whole batch's, before they were copied to the device.
    """

    rank: int
    ranks: int
    shape: tuple[int, ...]
    expert: int = 1
    tokens: SequencePart | None = None
    targets: Tensor | None = None


class SplitLayer(NamedTuple):
    """One layer: a spec for each parameter, and `forward(B, shards, X, part)`.

    `forward` is a plain function, or a generator that yields requests.
    """

    name: str
    specs: tuple[ShardSpec, ...]
    forward: Callable[[Backend, Sequence[Tensor], Tensor, RankInfo], Any]


def whole_loss(B: Backend, logits: Tensor, y: Tensor, part: RankInfo) -> Tensor:
    """Compute the losses of all targets on every device, from whole logits."""
    return losses_of(B, logits, y, part.targets)


class SplitModel(NamedTuple):
    """A split network, and the `whole` network that it equals.

    `loss(B, logits, y, part)` returns the loss of every target, or yields requests
    first.
    """

    name: str
    whole: Model
    layers: tuple[SplitLayer, ...]
    loss: Callable[[Backend, Tensor, Tensor, RankInfo], Any] = whole_loss

    @property
    def specs(self) -> list[tuple[str, ShardSpec]]:
        """The spec of every parameter, with the name of its layer."""
        return [(layer.name, spec) for layer in self.layers for spec in layer.specs]


def run_split(
    B: Backend, model: SplitModel, shards: Sequence[Tensor], X: Tensor, part: RankInfo
) -> CommGenerator:
    """Apply the layers to one device's shards; return its part of the logits."""
    first = 0
    for layer in model.layers:
        layer_shards = shards[first : first + len(layer.specs)]
        X = yield from named(layer.name, layer.forward(B, layer_shards, X, part))
        first += len(layer.specs)
    return X


def run_to_loss(
    B: Backend,
    model: SplitModel,
    shards: Sequence[Tensor],
    X: Tensor,
    y: Tensor | None,
    part: RankInfo,
) -> CommGenerator:
    """Return the summed loss of the targets y, or, without them, `run_split`."""
    with framework_errors(model.name, X):
        out = yield from run_split(B, model, shards, X, part)
        if y is None:
            return out
        losses = yield from named("loss", model.loss(B, out, y, part))
        return losses.sum()


def named(layer: str, forward: Any) -> CommGenerator:
    """Return a result, or run a generator and add the layer's name to its requests."""
    if not isinstance(forward, Generator):
        return forward
    answer = None
    while True:
        try:
            request = forward.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield replace(request, layer=layer)


# -- dense and convolutional layers ----------------------------------------------------

_DENSE = ShardSpec(1, "outputs"), ShardSpec(0, "inputs")
_SPECS: dict[Any, tuple[ShardSpec, ShardSpec]] = {  # of W, by outputs and by inputs
    dense: _DENSE,
    dense_relu: _DENSE,
    convolution: (ShardSpec(0, "output channels"), ShardSpec(1, "input channels")),
}


def split_layers(model: Model) -> SplitModel:
    """Split layers 0, 2, ... by outputs and 1, 3, ... by inputs.

    A last layer without a partner is replicated. A dense layer may follow a
    convolution: its rows are ordered by channel.
    """
    layers = []
    for i, layer in enumerate(model.layers):
        if i % 2:
            layers.append(by_inputs(layer))
        elif i < len(model.layers) - 1:
            layers.append(by_outputs(layer, first=i == 0))
        else:
            layers.append(replicated(layer))
    return SplitModel(model.name, model, tuple(layers))


def can_split(layer: Layer) -> bool:
    """Return whether the layer is dense or convolutional."""
    return _kind(layer) in _SPECS


def by_outputs(layer: Layer, first: bool = False) -> SplitLayer:
    """Split by the columns of W (Megatron's column-parallel layer), or its channels.

    X is whole on every device; W (inputs, outputs / ranks), or, as AlexNet's authors
    did, (c_out / ranks, c_in, kh, kw), and b compute some of the outputs. The `first`
    layer of a network need not sum a gradient of the data.
    """
    spec, _ = _SPECS[_kind(layer)]
    forward = partial(_by_outputs, forward=layer.forward, first=first)
    return SplitLayer(layer.name, (spec, ShardSpec(0, spec.of)), forward)


def by_inputs(layer: Layer) -> SplitLayer:
    """Split by the rows of W (Megatron's row-parallel layer), or its input channels.

    X (n, inputs / ranks), or (n, c_in / ranks, h, w), comes from a layer split by
    outputs; W (inputs / ranks, outputs), or (c_out, c_in / ranks, kh, kw), computes a
    partial sum of all outputs. The sum, b, and what follows are the same on all
    devices.
    """
    kind = _kind(layer)
    _, spec = _SPECS[kind]
    options = getattr(layer.forward, "keywords", {})
    forward = partial(_by_inputs, kind=kind, **options)
    return SplitLayer(layer.name, (spec, REPLICATED), forward)


def replicated(layer: Layer) -> SplitLayer:
    """Replicate the layer: every device computes all of it."""
    forward = partial(_by_outputs, forward=layer.forward, first=True)
    return SplitLayer(layer.name, (REPLICATED,) * layer.params, forward)


def _kind(layer: Layer) -> Any:
    return getattr(layer.forward, "func", layer.forward)


def _by_outputs(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    part: RankInfo,
    forward: Callable[..., Tensor],
    first: bool,
) -> CommGenerator:
    if not first:
        (X,) = yield Copy(X)
    return forward(B, params, X)


def _by_inputs(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    part: RankInfo,
    kind: Callable[..., Tensor],
    pool: str = "",
    padding: int = 0,
) -> CommGenerator:
    W, b = params
    if kind is convolution:
        H = B.conv2d(X, W, None, padding)
    else:
        H = X.reshape((X.shape[0], -1)) @ W
    (H,) = yield Reduce(H)
    # Add b after the sum; otherwise it would be counted once per device.
    H = H + b.reshape((1, -1) + (1,) * (len(H.shape) - 2))
    H = H if kind is dense else B.relu(H)
    return getattr(B, pool)(H, 2) if pool else H
