"""Initial weights, drawn by NumPy: every framework starts from the same bits."""

from __future__ import annotations

import math

import numpy as np


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw weights with variance 2 / fan_in (He et al., 2015), in float64.

    `shape` is (fan_in, out) for a dense layer, (out, in, kh, kw) for a convolution.
    """
    fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
    return rng.normal(0.0, math.sqrt(2 / fan_in), shape)
