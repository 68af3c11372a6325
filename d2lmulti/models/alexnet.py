"""A small network of AlexNet's shape: five convolutions, three dense layers.

AlexNet did not fit into one GPU of 3 GB, so its authors split every layer's channels
over two (Krizhevsky et al., 2012). All widths here are multiples of 12: 2, 3 and 4
devices can share them. It trains at a rate of 0.01.
Chapters: *splitting*, *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..backends.protocol import Backend, Tensor
from .lenet import convolution, dense, dense_relu, draw
from .model import Layer, Model, run_layers

_SHAPES: list[tuple[int, ...]] = [(12, 1, 5, 5), (24, 12, 5, 5), (36, 24, 3, 3)]
_SHAPES += [(36, 36, 3, 3), (24, 36, 3, 3), (24 * 3 * 3, 120), (120, 120), (120, 10)]

_pooled = partial(convolution, pool="max_pool2d")
_LAYERS = (
    Layer("convolution 1", 2, partial(_pooled, padding=2)),  # 12x14x14
    Layer("convolution 2", 2, partial(_pooled, padding=2)),  # 24x7x7
    Layer("convolution 3", 2, partial(convolution, padding=1)),
    Layer("convolution 4", 2, partial(convolution, padding=1)),
    Layer("convolution 5", 2, partial(_pooled, padding=1)),  # 24x3x3
    Layer("dense 1", 2, dense_relu),
    Layer("dense 2", 2, dense_relu),
    Layer("dense 3", 2, dense),
)


def alexnet(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits (n, 10) of images X (n, 1, 28, 28); a pair W, b a layer."""
    return run_layers(B, _LAYERS, params, X)


ALEXNET = Model(
    "alexnet",
    partial(draw, shapes=_SHAPES),
    alexnet,
    alexnet,
    layers=_LAYERS,
)
