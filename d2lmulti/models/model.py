"""A model is a plain function of (B, params, X), its initial weights beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Model(NamedTuple):
    """A network as functions.

    `initial(rng)` draws the parameters as float64 NumPy arrays. `forward(B, params, X)`
    returns the logits in training; it is a plain function, or a generator that yields
    wherever devices must talk (see `parallel.lockstep`). `predict` is the forward pass
    in evaluation. The last `buffers` parameters are statistics that no gradient trains.
    """

    name: str
    initial: Callable[[np.random.Generator], list[np.ndarray]]
    forward: Callable[..., Any]
    predict: Callable[..., Any]
    buffers: int = 0
