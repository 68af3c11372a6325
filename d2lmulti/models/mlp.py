"""A multilayer perceptron: as many dense layers as it has weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_count, check_list
from .lenet import dense, dense_relu, draw
from .model import MOST_WIDTH, Layer, Model


def mlp(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits of X (n, ...), flattened, with ReLU between the layers.

    params: W1 (inputs, hidden), b1, W2, b2, ..., one pair a layer.
    """
    H = X.reshape((X.shape[0], -1))
    for W, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        H = B.relu(H @ W + b)
    return H @ params[-2] + params[-1]


def initial_mlp(
    rng: np.random.Generator, widths: Sequence[int] = (784, 256, 10)
) -> list[np.ndarray]:
    """Draw the weights of a perceptron with these layer widths, input first."""
    return draw(rng, zip(widths[:-1], widths[1:], strict=True))


def make_mlp(name: str, widths: Sequence[int]) -> Model:
    """Make the perceptron with these layer widths, input first.

    Raises `InvalidInput` for fewer than two widths.
    """
    check_list("widths", widths, "layer widths, input first", min_length=2)
    widths = [check_count("width", width, max=MOST_WIDTH) for width in widths]
    hidden = [Layer(f"dense {i + 1}", 2, dense_relu) for i in range(len(widths) - 2)]
    output = Layer(f"dense {len(widths) - 1}", 2, dense)
    initial = partial(initial_mlp, widths=tuple(widths))
    return Model(name, initial, mlp, mlp, layers=(*hidden, output))


MLP = make_mlp("mlp", (784, 256, 10))
DEEP_MLP = make_mlp("deep_mlp", (784, *[64] * 7, 10))  # 8 layers: stages to share out
