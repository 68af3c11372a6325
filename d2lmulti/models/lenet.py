"""D2L's LeNet from raw tensors: two convolutions, two dense layers, eight parameters.

129,068 numbers for images of 1 x 28 x 28. Chapter: *data_parallel*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def initial_lenet(rng: np.random.Generator) -> list[np.ndarray]:
    """Draw LeNet's eight parameters: He's normal weights, biases zero."""
    shapes = [(20, 1, 3, 3), (50, 20, 5, 5), (800, 128), (128, 10)]
    params: list[np.ndarray] = []
    for shape in shapes:
        outputs = shape[1] if len(shape) == 2 else shape[0]
        params += [he_normal(rng, shape), np.zeros(outputs)]
    return params


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw weights with variance 2 / fan_in (He et al., 2015), in float64.

    `shape` is (fan_in, out) for a dense layer, (out, in, kh, kw) for a convolution.
    """
    fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
    return rng.normal(0.0, math.sqrt(2 / fan_in), shape)


def _convolution(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    return B.avg_pool2d(B.relu(B.conv2d(X, *params)), 2)


def dense(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute X W + b for params W (inputs, outputs), b and X (n, ...), flattened."""
    W, b = params
    return X.reshape((X.shape[0], -1)) @ W + b


def dense_relu(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the dense layer and cut off what is negative."""
    return B.relu(dense(B, params, X))


LENET = Model(
    "lenet",
    initial_lenet,
    lenet,
    lenet,
    layers=(
        Layer("convolution 1", 2, _convolution),
        Layer("convolution 2", 2, _convolution),
        Layer("dense 1", 2, dense_relu),
        Layer("dense 2", 2, dense),
    ),
)
