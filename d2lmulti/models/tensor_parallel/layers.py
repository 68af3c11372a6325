"""Dense and convolutional layers split by their outputs or by their inputs.

Split by outputs, a device computes some of the columns (channels) from a whole input;
split by inputs, it computes from the columns it has a summand of all outputs. So the
second takes what the first gives, and a pair of them meets once each way.
Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...backends.protocol import Backend, Tensor
from ...plans.requests import Copy, Reduce
from ..lenet import convolution, dense, dense_relu
from ..model import Layer
from .split import REPLICATED, RankInfo, ShardSpec, SplitLayer, Talk

_COLUMNS, _ROWS = ShardSpec(1, "outputs"), ShardSpec(0, "inputs")
_CUTS: dict[Any, tuple[ShardSpec, ShardSpec]] = {  # of W, by outputs and by inputs
    dense: (_COLUMNS, _ROWS),
    dense_relu: (_COLUMNS, _ROWS),
    convolution: (ShardSpec(0, "output channels"), ShardSpec(1, "input channels")),
}


def can_split(layer: Layer) -> bool:
    """Tell whether it is one of the layers that are split here."""
    return _kind(layer) in _CUTS


def by_outputs(layer: Layer, first: bool = False) -> SplitLayer:
    """Split by the columns of W (Megatron's column-parallel layer), or its channels.

    X is whole on every device; W (inputs, outputs / ranks), or, as AlexNet's authors
    did, (c_out / ranks, c_in, kh, kw), and b give a part of the outputs. The `first`
    layer of a network need not sum up a gradient for the data.
    """
    cut, _ = _CUTS[_kind(layer)]
    forward = partial(_by_outputs, forward=layer.forward, first=first)
    return SplitLayer(layer.name, (cut, ShardSpec(0, cut.of)), forward)


def by_inputs(layer: Layer) -> SplitLayer:
    """Split by the rows of W (Megatron's row-parallel layer), or its input channels.

    X (n, inputs / ranks), or (n, c_in / ranks, h, w), is what a layer split by outputs
    gave; W (inputs / ranks, outputs), or (c_out, c_in / ranks, kh, kw), gives a summand
    of all outputs. The sum, b and what follows are whole on every device.
    """
    kind = _kind(layer)
    _, cut = _CUTS[kind]
    how = getattr(layer.forward, "keywords", {})
    return SplitLayer(
        layer.name, (cut, REPLICATED), partial(_by_inputs, kind=kind, **how)
    )


def whole_layer(layer: Layer) -> SplitLayer:
    """Let every device do a layer of the whole network, each the same."""
    forward = partial(_by_outputs, forward=layer.forward, first=True)
    return SplitLayer(layer.name, (REPLICATED,) * layer.params, forward)


def _kind(layer: Layer) -> Any:
    return getattr(layer.forward, "func", layer.forward)


def _by_outputs(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    forward: Callable[..., Tensor], first: bool,
) -> Talk:  # fmt: skip
    if not first:
        (X,) = yield Copy(X)
    return forward(B, params, X)


def _by_inputs(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    kind: Callable[..., Tensor], pool: str = "", padding: int = 0,
) -> Talk:  # fmt: skip
    W, b = params
    if kind is convolution:
        H = B.conv2d(X, W, None, padding)
    else:
        H = X.reshape((X.shape[0], -1)) @ W
    (H,) = yield Reduce(H)
    # b comes after the sum: each device's would be counted once a device.
    H = H + b.reshape((1, -1) + (1,) * (len(H.shape) - 2))
    H = H if kind is dense else B.relu(H)
    return getattr(B, pool)(H, 2) if pool else H
