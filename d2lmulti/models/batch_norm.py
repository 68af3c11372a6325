"""LeNet with batch normalization, per device or synchronized across devices.

A shard of 16 examples has noisier statistics than a batch of 64, so with normalization
per device, k devices do not compute the result of one. The synchronized version yields
its sums to be all-reduced, and receives the sums over all devices.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..comm.cooperative import Sum, together
from .networks import LENET, Model

_MOMENTUM = 0.9  # of the moving averages that evaluation uses
_EPS = 1e-5
_BUFFERS = 4  # the moving averages, which come last


def sums_of(B: Backend, H: Tensor) -> Tensor:
    """Return sums, sums of squares, and the count of every channel of H (n, c, h, w).

    They are one tensor (1, 2c + 1, 1, 1); its sum over the devices is the whole
    batch's.
    """
    count = B.array(
        np.full((1, 1, 1, 1), H.shape[0] * H.shape[2] * H.shape[3], B.dtype_of(H)),
        B.device_of(H),
    )
    sums = [B.sum(H, (0, 2, 3), True), B.sum(H * H, (0, 2, 3), True), count]
    return B.concat(sums, axis=1)


def normalize(
    B: Backend, H: Tensor, totals: Tensor, weights: Sequence[Tensor]
) -> Tensor:
    """Normalize every channel of H over n, h and w by `totals`, then scale and shift.

    weights: gamma, beta, moving mean, moving variance, each (1, c, 1, 1); the moving
    ones are updated in place.
    """
    gamma, beta, moving_mean, moving_var = weights
    channels = H.shape[1]
    totals = totals.reshape((2 * channels + 1,))
    n = totals[2 * channels : 2 * channels + 1]
    mean = (totals[:channels] / n).reshape((1, channels, 1, 1))
    mean_square = (totals[channels : 2 * channels] / n).reshape((1, channels, 1, 1))
    var = mean_square - mean * mean
    with B.pause():
        for moving, current in ((moving_mean, mean), (moving_var, var)):
            new = moving * _MOMENTUM + B.detach(current) * (1 - _MOMENTUM)
            B.write_(moving, 0, channels, new)
    return (H - mean) / (var + _EPS) ** 0.5 * gamma + beta


def lenet_sync_bn(
    B: Backend, params: Sequence[Tensor], X: Tensor
) -> Generator[Sum, Any, Tensor]:
    """Compute LeNet's logits, normalized with the statistics of the whole batch."""
    W1, W2, W3, b3, W4, b4, g1, s1, g2, s2, m1, v1, m2, v2 = params
    H = B.conv2d(X, W1, None)
    totals, H = yield Sum(sums_of(B, H), keep=(H,))
    H = normalize(B, H, totals, (g1, s1, m1, v1))
    H = B.conv2d(B.avg_pool2d(B.relu(H), 2), W2, None)
    totals, H = yield Sum(sums_of(B, H), keep=(H,))
    return _dense_layers(B, params, normalize(B, H, totals, (g2, s2, m2, v2)))


def lenet_bn(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute LeNet's logits, normalized with the statistics of the device's shard."""
    forward, answer = lenet_sync_bn(B, params, X), None
    while True:
        try:
            request = forward.send(answer)
        except StopIteration as end:
            return end.value
        answer = request.tensor, *request.keep


def lenet_bn_eval(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits in evaluation, with the replica's own moving averages."""
    W1, W2, W3, b3, W4, b4, g1, s1, g2, s2, m1, v1, m2, v2 = params
    H = (B.conv2d(X, W1, None) - m1) / (v1 + _EPS) ** 0.5 * g1 + s1
    H = B.conv2d(B.avg_pool2d(B.relu(H), 2), W2, None)
    return _dense_layers(B, params, (H - m2) / (v2 + _EPS) ** 0.5 * g2 + s2)


def _dense_layers(B: Backend, params: Sequence[Tensor], H: Tensor) -> Tensor:
    W3, b3, W4, b4 = params[2:6]
    H = B.avg_pool2d(B.relu(H), 2)
    return B.relu(H.reshape((-1, 800)) @ W3 + b3) @ W4 + b4


def initial_bn(rng: np.random.Generator) -> list[np.ndarray]:
    """Sample LeNet's parameters, then gamma 1, beta 0, moving mean 0 and variance 1.

    The convolutions have no bias, because subtracting the mean would cancel it.
    """
    W1, _, W2, _, *dense = LENET.initial(rng)
    shapes = [(1, 20, 1, 1), (1, 50, 1, 1)]
    scales = [fill(shape) for shape in shapes for fill in (np.ones, np.zeros)]
    moving = [fill(shape) for shape in shapes for fill in (np.zeros, np.ones)]
    return [W1, W2, *dense, *scales, *moving]


LENET_BN = Model("lenet_bn", initial_bn, lenet_bn, lenet_bn_eval, _BUFFERS)
LENET_SYNC_BN = Model(
    "lenet_sync_bn",
    initial_bn,
    lenet_bn,  # the same on one device
    lenet_bn_eval,
    _BUFFERS,
    together=together(lenet_sync_bn, _BUFFERS),
)
