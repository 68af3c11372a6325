"""A model is a plain function of (B, params, X), its initial weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.protocol import Backend, Tensor


class Layer(NamedTuple):
    """One step of a network, with the next `params` of the model's parameters."""

    name: str
    params: int
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]


class Model(NamedTuple):
    """A network as functions.

    `initial(rng)` draws the parameters as float64 NumPy arrays. `forward(B, params, X)`
    returns the logits in training; it is a plain function, or a generator that yields
    wherever devices must talk (see `parallel.lockstep`). `predict` is the forward pass
    in evaluation. The last `buffers` parameters are statistics that no gradient trains.
    `layers` are the same network as a sequence that can be cut into stages; empty where
    it cannot. There is one row of logits for each entry of the targets y. X holds
    numbers, or, where `vocabulary` is not 0, int64 ids below it.
    """

    name: str
    initial: Callable[[np.random.Generator], list[np.ndarray]]
    forward: Callable[..., Any]
    predict: Callable[..., Any]
    buffers: int = 0
    layers: tuple[Layer, ...] = ()
    vocabulary: int = 0


def run_layers(
    B: Backend, layers: Sequence[Layer], params: Sequence[Tensor], X: Tensor
) -> Tensor:
    """Apply the layers one after the other, each to its own parameters."""
    first = 0
    for layer in layers:
        X = layer.forward(B, params[first : first + layer.params], X)
        first += layer.params
    return X
