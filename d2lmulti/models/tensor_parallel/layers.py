"""Dense and convolutional layers split by their outputs or by their inputs.

Split by outputs, a device computes some of the columns (channels) from a whole input;
split by inputs, it computes from the columns it has a summand of all outputs. So the
second takes what the first gives, and a pair of them meets once each way.
Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ...backends.protocol import Backend, Tensor
from ...plans.requests import Enter, Leave
from .split import WHOLE, Cut, RankInfo, SplitLayer, Talk

Activation = Callable[[Backend, Tensor], Tensor]


def dense_by_outputs(
    name: str, after: Activation | None = None, first: bool = False
) -> SplitLayer:
    """Split X W + b by the columns of W (Megatron's column-parallel layer).

    X (n, inputs) is whole on every device; W (inputs, outputs / ranks) and b give
    (n, outputs / ranks). `after` is applied to it, entry by entry. The `first` layer of
    a network need not sum up a gradient for the data.
    """
    cuts = (Cut(1, "outputs"), Cut(0, "outputs"))
    return SplitLayer(
        name, cuts, partial(_by_outputs, linear=_dense, after=after, first=first)
    )


def dense_by_inputs(name: str, after: Activation | None = None) -> SplitLayer:
    """Split X W + b by the rows of W (Megatron's row-parallel layer).

    X (n, inputs / ranks), or (n, channels / ranks, h, w), is what a layer split by
    outputs gave; W is (inputs / ranks, outputs). The sum over all devices, b and
    `after` give (n, outputs), whole on every device.
    """
    cuts = (Cut(0, "inputs"), WHOLE)
    return SplitLayer(name, cuts, partial(_by_inputs, linear=_dense, after=after))


def conv_by_outputs(
    name: str, after: Activation | None = None, padding: int = 0, first: bool = False
) -> SplitLayer:
    """Split a convolution by its output channels, as AlexNet's authors did.

    X (n, c_in, h, w) is whole on every device; W (c_out / ranks, c_in, kh, kw) and b
    give c_out / ranks channels. `after` and `first` are as in `dense_by_outputs`;
    `after` may also pool.
    """
    cuts = (Cut(0, "output channels"), Cut(0, "output channels"))
    linear = partial(_conv, padding=padding)
    return SplitLayer(
        name, cuts, partial(_by_outputs, linear=linear, after=after, first=first)
    )


def conv_by_inputs(
    name: str, after: Activation | None = None, padding: int = 0
) -> SplitLayer:
    """Split a convolution by its input channels, which a layer by outputs gave.

    X (n, c_in / ranks, h, w) and W (c_out, c_in / ranks, kh, kw) give a summand of all
    c_out channels. The sum, b and `after` are whole on every device.
    """
    cuts = (Cut(1, "input channels"), WHOLE)
    linear = partial(_conv, padding=padding)
    return SplitLayer(name, cuts, partial(_by_inputs, linear=linear, after=after))


def whole_layer(name: str, forward: Callable[..., Tensor], params: int) -> SplitLayer:
    """Let every device do a layer of the whole network, each the same."""
    return SplitLayer(name, (WHOLE,) * params, partial(_whole, forward=forward))


def _by_outputs(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    linear: Callable[..., Tensor], after: Activation | None, first: bool,
) -> Talk:  # fmt: skip
    if not first:
        (X,) = yield Enter(X)
    W, b = params
    H = _add_bias(linear(B, X, W), b)
    return after(B, H) if after else H


def _by_inputs(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    linear: Callable[..., Tensor], after: Activation | None,
) -> Talk:  # fmt: skip
    W, b = params
    (H,) = yield Leave(linear(B, X, W))
    H = _add_bias(H, b)  # after the sum: each device's would be counted once a device
    return after(B, H) if after else H


def _dense(B: Backend, X: Tensor, W: Tensor) -> Tensor:
    return X.reshape((X.shape[0], -1)) @ W


def _conv(B: Backend, X: Tensor, W: Tensor, padding: int) -> Tensor:
    return B.conv2d(X, W, None, padding)


def _add_bias(H: Tensor, b: Tensor) -> Tensor:
    return H + b.reshape((1, -1) + (1,) * (len(H.shape) - 2))


def _whole(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    forward: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    return forward(B, params, X)
