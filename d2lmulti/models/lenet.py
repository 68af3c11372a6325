"""D2L's LeNet from raw tensors: two convolutions, two dense layers, eight parameters.

129,068 numbers for images of 1 x 28 x 28. Chapter: *data_parallel*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from ..backends.protocol import Backend, Tensor
from .model import Layer, Model


def lenet(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits (n, 10) of images X (n, 1, 28, 28).

    params: W1 (20, 1, 3, 3), b1, W2 (50, 20, 5, 5), b2, W3 (800, 128), b3,
    W4 (128, 10), b4. Source: D2L, "Training on Multiple GPUs".
    """
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    H = B.avg_pool2d(B.relu(B.conv2d(X, W1, b1)), 2)  # (n, 20, 13, 13)
    H = B.avg_pool2d(B.relu(B.conv2d(H, W2, b2)), 2)  # (n, 50, 4, 4)
    H = B.relu(H.reshape((-1, 800)) @ W3 + b3)  # (n, 128)
    return H @ W4 + b4  # (n, 10)


def draw(
    rng: np.random.Generator, shapes: Iterable[tuple[int, ...]]
) -> list[np.ndarray]:
    """Draw weights of variance 2 / fan_in (He et al., 2015), in float64; zero biases.

    A shape is (fan_in, out) for a dense layer, (out, in, kh, kw) for a convolution.
    """
    params: list[np.ndarray] = []
    for shape in shapes:
        fan_in, out = shape if len(shape) == 2 else (math.prod(shape[1:]), shape[0])
        params += [rng.normal(0.0, math.sqrt(2 / fan_in), shape), np.zeros(out)]
    return params


def convolution(
    B: Backend, params: Sequence[Tensor], X: Tensor, pool: str = "", padding: int = 0
) -> Tensor:
    """Convolve X (n, c, h, w) with params W, b, cut off what is negative, and pool."""
    H = B.relu(B.conv2d(X, params[0], params[1], padding))
    return getattr(B, pool)(H, 2) if pool else H


def dense(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute X W + b for params W (inputs, outputs), b and X (n, ...), flattened."""
    W, b = params
    return X.reshape((X.shape[0], -1)) @ W + b


def dense_relu(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the dense layer and cut off what is negative."""
    return B.relu(dense(B, params, X))


LENET = Model(
    "lenet",
    partial(draw, shapes=[(20, 1, 3, 3), (50, 20, 5, 5), (800, 128), (128, 10)]),
    lenet,
    lenet,
    layers=(
        Layer("convolution 1", 2, partial(convolution, pool="avg_pool2d")),
        Layer("convolution 2", 2, partial(convolution, pool="avg_pool2d")),
        Layer("dense 1", 2, dense_relu),
        Layer("dense 2", 2, dense),
    ),
)
