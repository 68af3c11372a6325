"""A small network of AlexNet's shape: five convolutions, three dense layers.

AlexNet did not fit into one GPU of 3 GB, so its authors split every layer's channels
over two (Krizhevsky et al., 2012). All widths here are multiples of 12: 2, 3 and 4
devices can share them. It trains at a rate of 0.01.
Chapters: *splitting*, *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..backends.protocol import Backend, Tensor
from .lenet import dense, dense_relu, he_normal
from .model import Layer, Model, run_layers

_CONVOLUTIONS = [(12, 1, 5, 5), (24, 12, 5, 5), (36, 24, 3, 3), (36, 36, 3, 3)]
_CONVOLUTIONS += [(24, 36, 3, 3)]
_DENSE = [(24 * 3 * 3, 120), (120, 120), (120, 10)]


def _convolution(
    B: Backend, params: Sequence[Tensor], X: Tensor, padding: int, pool: bool
) -> Tensor:
    W, b = params
    H = B.relu(B.conv2d(X, W, b, padding))
    return B.max_pool2d(H, 2) if pool else H


_LAYERS = (
    Layer("convolution 1", 2, partial(_convolution, padding=2, pool=True)),  # 12x14x14
    Layer("convolution 2", 2, partial(_convolution, padding=2, pool=True)),  # 24x7x7
    Layer("convolution 3", 2, partial(_convolution, padding=1, pool=False)),
    Layer("convolution 4", 2, partial(_convolution, padding=1, pool=False)),
    Layer("convolution 5", 2, partial(_convolution, padding=1, pool=True)),  # 24x3x3
    Layer("dense 1", 2, dense_relu),
    Layer("dense 2", 2, dense_relu),
    Layer("dense 3", 2, dense),
)


def alexnet(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits (n, 10) of images X (n, 1, 28, 28); a pair W, b a layer."""
    return run_layers(B, _LAYERS, params, X)


def initial_alexnet(rng: np.random.Generator) -> list[np.ndarray]:
    """Draw the sixteen parameters: He's normal weights, biases zero."""
    params: list[np.ndarray] = []
    for shape in (*_CONVOLUTIONS, *_DENSE):
        outputs = shape[1] if len(shape) == 2 else shape[0]
        params += [he_normal(rng, shape), np.zeros(outputs)]
    return params


ALEXNET = Model("alexnet", initial_alexnet, alexnet, alexnet, layers=_LAYERS)
