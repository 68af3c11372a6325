"""A model is a plain function of (B, params, X), its initial weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..backends import checks
from ..backends.protocol import Backend, Tensor
from ..errors import D2LMultiError, InvalidInput

MOST_WIDTH = 10**7  # of a layer; more is a slip of the finger


class Layer(NamedTuple):
    """One step of a network, with the next `params` of the model's parameters."""

    name: str
    params: int
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]


class Model(NamedTuple):
    """A network as functions.

    `initial(rng)` draws the parameters as float64 NumPy arrays. `forward(B, params, X)`
    returns the logits in training; it is a plain function, or a generator that yields
    wherever devices must talk (see `parallel.cooperative`). `predict` is the forward
    pass in evaluation. The last `buffers` parameters are statistics that no gradient
    trains. `layers` are the same network as a sequence that can be cut into stages;
    empty where it cannot. There is one row of logits for each entry of the targets y.
    X holds numbers, or, where `vocabulary` is not 0, int64 ids below it.
    """

    name: str
    initial: Callable[[np.random.Generator], list[np.ndarray]]
    forward: Callable[..., Any]
    predict: Callable[..., Any]
    buffers: int = 0
    layers: tuple[Layer, ...] = ()
    vocabulary: int = 0


@contextmanager
def explained(name: str, X: Tensor) -> Iterator[None]:
    """Say of which model and which examples a framework's own error tells.

    Raises `InvalidInput` in its place; the errors of this library go on as they are.
    """
    try:
        yield
    except D2LMultiError:
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"{name} cannot compute examples of shape {tuple(X.shape)} and "
            f"dtype {str(X.dtype).rpartition('.')[2]} with these parameters "
            f"({type(error).__name__}: {first:.200}); give it those it was made for"
        ) from error


def forward(model: Model, B: Backend, params: Sequence[Tensor], X: Tensor) -> Any:
    """Call `model.forward` in training, its errors `explained`."""
    with explained(model.name, X):
        out = model.forward(B, params, X)
    return _to_the_end(out, model.name, X) if isinstance(out, Generator) else out


def _to_the_end(talk: Generator, name: str, X: Tensor) -> Generator:
    with explained(name, X):  # not what happens while it waits at a yield
        return (yield from talk)


def losses_of(B: Backend, logits: Tensor, y: Tensor) -> Tensor:
    """Compute the cross-entropy of every target in y (n, ...), one a row of logits.

    Raises `InvalidInput` for another number of rows, and for a target that is no class
    where y lies on the CPU: MXNet would take the nearest class, Paddle count from the
    last. To look at a GPU's would mean to wait for it.
    """
    y = y.reshape((-1,))
    rows, classes = (int(extent) for extent in logits.shape)
    if rows != len(y):
        raise InvalidInput(
            f"expected a row of logits for each of {len(y)} targets, got {rows}; give "
            "the model the examples that it was made for"
        )
    if B.device_of(y) == "cpu":
        checks.ids(B.numpy(y), classes)
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
