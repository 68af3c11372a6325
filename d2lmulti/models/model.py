"""A model is a plain function of (B, params, X), its initial weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_choice, check_ids
from ..errors import InvalidInput

MAX_WIDTH = 10**7  # of a layer; more is a slip of the finger


class Layer(NamedTuple):
    """One step of a network, with the next `params` of the model's parameters."""

    name: str
    params: int
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]


class Model(NamedTuple):
    """A network as functions.

    `initial(rng)` draws the parameters as float64 NumPy arrays. `forward(B, params, X)`
    returns the logits in training, `forward_eval` in evaluation. The last `buffers`
    parameters are statistics that no gradient trains. `layers` are the same network as
    a sequence that can be cut into stages; empty where it cannot. Where the devices
    must talk in the middle of a step, `together(B, replicas, shards, group, algorithm)`
    runs all of them and gives their logits and how to go backward from the losses.
    There is one row of logits for each entry of the targets y. X holds numbers, or,
    where `vocabulary` is not 0, int64 ids below it.
    """

    name: str
    initial: Callable[[np.random.Generator], list[np.ndarray]]
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]
    forward_eval: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]
    buffers: int = 0
    layers: tuple[Layer, ...] = ()
    vocabulary: int = 0
    together: Callable[..., Together] | None = None


Together = tuple[list[Tensor], Callable[[Sequence[Tensor]], None]]
MODELS: dict[str, Model] = {}  # by name: those that `register` has taken


def register(*models: Model) -> None:
    """Let these models be found by their names."""
    MODELS.update({model.name: model for model in models})


def get_model(model: str | Model) -> Model:
    """Return the model of that name. Raises `InvalidInput` for an unknown name."""
    if isinstance(model, Model):
        return model
    return MODELS[check_choice("model", model, MODELS, "or make a Model of your own")]


def losses_of(
    B: Backend, logits: Tensor, y: Tensor, on_cpu: Tensor | None = None
) -> Tensor:
    """Compute the cross-entropy of every target in y (n, ...), one a row of logits.

    Raises `InvalidInput` for another number of rows, and for a target that is no class.
    Where y lies on a GPU, pass the targets that it was copied from as `on_cpu`.
    """
    y = y.reshape((-1,))
    rows, classes = (int(extent) for extent in logits.shape)
    if rows != len(y):
        raise InvalidInput(
            f"expected a row of logits for each of {len(y)} targets, got {rows}; give "
            "the model the examples that it was made for"
        )
    # A wrong target ends all CUDA work of a PyTorch or Paddle process, MXNet takes the
    # nearest class, and Paddle on a CPU counts from the last. To read y on a GPU would
    # mean to wait for the GPU, so there its source is checked.
    source = y if on_cpu is None or B.device_of(y) == "cpu" else on_cpu
    if B.device_of(source) == "cpu":
        check_ids(B.numpy(source), classes)
    return B.cross_entropy(logits, y)


def run_layers(
    B: Backend, layers: Sequence[Layer], params: Sequence[Tensor], X: Tensor
) -> Tensor:
    """Apply the layers one after the other, each to its own parameters."""
    first = 0
    for layer in layers:
        X = layer.forward(B, params[first : first + layer.params], X)
        first += layer.params
    return X
