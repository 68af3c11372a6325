"""LeNet with batch normalisation, per device or synchronised across devices.

A shard of 16 examples has noisier statistics than a batch of 64: normalised per device,
k devices no longer compute what one device would. The synchronised version yields its
sums wherever the devices must talk, and gets back the sums over all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..plans.requests import Sum
from .lenet import initial_lenet
from .model import Model

_MOMENTUM = 0.9  # of the moving averages that evaluation uses
_EPS = 1e-5


def batch_norm(
    B: Backend, H: Tensor, weights: Sequence[Tensor], synchronised: bool
) -> Generator[Sum, Any, Tensor]:
    """Normalise every channel of H (n, c, h, w) over n, h and w, then scale and shift.

    weights: gamma, beta, moving mean, moving variance, each (1, c, 1, 1); the moving
    ones are updated in place. One all-reduce carries sums, squares and the count.
    """
    gamma, beta, moving_mean, moving_var = weights
    count = B.array(
        np.full((1, 1, 1, 1), H.shape[0] * H.shape[2] * H.shape[3], B.dtype_of(H)),
        B.device_of(H),
    )
    sums = [B.sum(H, (0, 2, 3), True), B.sum(H * H, (0, 2, 3), True), count]
    totals = B.concat(sums, axis=1)  # (1, 2c + 1, 1, 1)
    if synchronised:
        totals, H = yield Sum(totals, keep=(H,))
    channels = H.shape[1]
    totals = totals.reshape((2 * channels + 1,))
    n = totals[2 * channels : 2 * channels + 1]
    mean = (totals[:channels] / n).reshape((1, channels, 1, 1))
    mean_square = (totals[channels : 2 * channels] / n).reshape((1, channels, 1, 1))
    var = mean_square - mean * mean
    with B.pause():
        for moving, now in ((moving_mean, mean), (moving_var, var)):
            new = moving * _MOMENTUM + B.detach(now) * (1 - _MOMENTUM)
            B.write_(moving, 0, channels, new)
    return (H - mean) / (var + _EPS) ** 0.5 * gamma + beta


def _forward(
    B: Backend, params: Sequence[Tensor], X: Tensor, synchronised: bool
) -> Generator[Sum, Any, Tensor]:
    W1, W2, W3, b3, W4, b4, g1, s1, g2, s2, m1, v1, m2, v2 = params
    H = yield from batch_norm(B, B.conv2d(X, W1, None), (g1, s1, m1, v1), synchronised)
    H = B.avg_pool2d(B.relu(H), 2)
    H = yield from batch_norm(B, B.conv2d(H, W2, None), (g2, s2, m2, v2), synchronised)
    H = B.avg_pool2d(B.relu(H), 2)
    H = B.relu(H.reshape((-1, 800)) @ W3 + b3)
    return H @ W4 + b4


def lenet_bn(
    B: Backend, params: Sequence[Tensor], X: Tensor
) -> Generator[Sum, Any, Tensor]:
    """LeNet normalised with the statistics of the device's own shard."""
    return _forward(B, params, X, synchronised=False)


def lenet_sync_bn(
    B: Backend, params: Sequence[Tensor], X: Tensor
) -> Generator[Sum, Any, Tensor]:
    """LeNet normalised with the statistics of the whole batch, on every device."""
    return _forward(B, params, X, synchronised=True)


def predict_bn(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Evaluate with the moving averages, which each replica keeps for itself."""
    W1, W2, W3, b3, W4, b4, g1, s1, g2, s2, m1, v1, m2, v2 = params
    H = (B.conv2d(X, W1, None) - m1) / (v1 + _EPS) ** 0.5 * g1 + s1
    H = B.avg_pool2d(B.relu(H), 2)
    H = (B.conv2d(H, W2, None) - m2) / (v2 + _EPS) ** 0.5 * g2 + s2
    H = B.avg_pool2d(B.relu(H), 2)
    H = B.relu(H.reshape((-1, 800)) @ W3 + b3)
    return H @ W4 + b4


def initial_bn(rng: np.random.Generator) -> list[np.ndarray]:
    """Draw LeNet's parameters, then gamma 1 and beta 0, moving mean 0 and variance 1.

    The convolutions have no bias: subtracting the mean would take it away again.
    """
    W1, _, W2, _, *dense = initial_lenet(rng)
    shapes = [(1, 20, 1, 1), (1, 50, 1, 1)]
    scales = [fill(shape) for shape in shapes for fill in (np.ones, np.zeros)]
    moving = [fill(shape) for shape in shapes for fill in (np.zeros, np.ones)]
    return [W1, W2, *dense, *scales, *moving]


LENET_BN = Model("lenet_bn", initial_bn, lenet_bn, predict_bn, buffers=4)
LENET_SYNC_BN = Model("lenet_sync_bn", initial_bn, lenet_sync_bn, predict_bn, buffers=4)
