"""A model is a plain function of (B, params, X); here D2L's LeNet and other networks.

LeNet has 129,068 parameters for images of 1 x 28 x 28. Chapters: *data_parallel*,
*splitting*, *tensor_parallel*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_choice, check_count, check_ids, check_list
from ..errors import D2LMultiError, InvalidInput

MAX_WIDTH = 10**7  # of a layer; a larger one is a typing error


class Layer(NamedTuple):
    """One layer of a network, with the next `params` of the model's parameters."""

    name: str
    params: int
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Tensor]


class Model(NamedTuple):
    """A network as functions.

    `initial(rng)` samples the parameters as float64 NumPy arrays. `forward(B, params,
    X)` returns the logits in training, `forward_eval` in evaluation. The last `buffers`
    parameters are statistics that no gradient trains. `layers` are the same network as
    a sequence that can be cut into stages; empty where it cannot. Where the devices
    must communicate in the middle of a step, `together(B, replicas, shards, group,
    algorithm)` runs all of them and returns their logits and the backward pass from the
    losses. There is one row of logits for each entry of the targets y. X holds floats,
    or, where `vocabulary` is not 0, int64 ids below it.
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
MODELS: dict[str, Model] = {}  # those registered, by name


def register(*models: Model) -> None:
    """Register models by their names."""
    MODELS.update({model.name: model for model in models})


def get_model(model: str | Model) -> Model:
    """Return the model of that name. Raises `InvalidInput` for an unknown name."""
    if isinstance(model, Model):
        return model
    return MODELS[check_choice("model", model, MODELS, "or make a Model of your own")]


def losses_of(
    B: Backend, logits: Tensor, y: Tensor, on_cpu: Tensor | None = None
) -> Tensor:
    """Compute the cross-entropy of every target in y (n, ...), one per row of logits.

    Raises `InvalidInput` for another number of rows, and for a target that is no class.
    Where y is on a GPU, pass the targets that it was copied from as `on_cpu`.
    """
    y = y.reshape((-1,))
    rows, classes = (int(extent) for extent in logits.shape)
    if rows != len(y):
        raise InvalidInput(
            f"expected a row of logits for each of {len(y)} targets, got {rows}; give "
            "the model the examples that it was made for"
        )
    # An invalid target aborts all CUDA work of a PyTorch or Paddle process; MXNet uses
    # the nearest class, and Paddle on a CPU counts from the end. Reading y on a GPU
    # would wait for the GPU, so there its source is checked.
    source = y if on_cpu is None or B.device_of(y) == "cpu" else on_cpu
    if B.device_of(source) == "cpu":
        check_ids(B.numpy(source), classes)
    return B.cross_entropy(logits, y)


@contextmanager
def framework_errors(name: str, X: Any) -> Iterator[None]:
    """Turn a framework's error into `InvalidInput` that names network and examples.

    The errors of this library are not changed.
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
            f"({type(error).__name__}: {first:.200}); pass it those it was made for"
        ) from error


def run_layers(
    B: Backend, layers: Sequence[Layer], params: Sequence[Tensor], X: Tensor
) -> Tensor:
    """Apply the layers one after the other, each to its own parameters."""
    first = 0
    for layer in layers:
        X = layer.forward(B, params[first : first + layer.params], X)
        first += layer.params
    return X


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
    """Sample weights of variance 2 / fan_in (He et al., 2015), in float64; zero biases.

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
    """Convolve X (n, c, h, w) with params W, b, apply ReLU, and pool."""
    H = B.relu(B.conv2d(X, params[0], params[1], padding))
    return getattr(B, pool)(H, 2) if pool else H


def dense(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute X W + b for params W (inputs, outputs), b and X (n, ...), flattened."""
    W, b = params
    return X.reshape((X.shape[0], -1)) @ W + b


def dense_relu(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute a dense layer and apply ReLU."""
    return B.relu(dense(B, params, X))


average_pooled = partial(convolution, pool="avg_pool2d")
max_pooled = partial(convolution, pool="max_pool2d")

LENET = Model(
    "lenet",
    partial(draw, shapes=[(20, 1, 3, 3), (50, 20, 5, 5), (800, 128), (128, 10)]),
    lenet,
    lenet,
    layers=(
        Layer("convolution 1", 2, average_pooled),
        Layer("convolution 2", 2, average_pooled),
        Layer("dense 1", 2, dense_relu),
        Layer("dense 2", 2, dense),
    ),
)


# -- multilayer perceptrons -------------------------------------------------------


def mlp(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits of X (n, ...), flattened, with ReLU between the layers.

    params: W1 (inputs, hidden), b1, W2, b2, ..., one pair per layer.
    """
    H = X.reshape((X.shape[0], -1))
    for W, b in zip(params[:-2:2], params[1:-2:2], strict=True):
        H = B.relu(H @ W + b)
    return H @ params[-2] + params[-1]


def initial_mlp(
    rng: np.random.Generator, widths: Sequence[int] = (784, 256, 10)
) -> list[np.ndarray]:
    """Sample the weights of a perceptron with these layer widths, input first."""
    return draw(rng, zip(widths[:-1], widths[1:], strict=True))


def make_mlp(name: str, widths: Sequence[int]) -> Model:
    """Make the perceptron with these layer widths, input first.

    Raises `InvalidInput` for fewer than two widths.
    """
    check_list("widths", widths, "layer widths, input first", min_length=2)
    widths = [check_count("width", width, max=MAX_WIDTH) for width in widths]
    hidden = [Layer(f"dense {i + 1}", 2, dense_relu) for i in range(len(widths) - 2)]
    output = Layer(f"dense {len(widths) - 1}", 2, dense)
    initial = partial(initial_mlp, widths=tuple(widths))
    return Model(name, initial, mlp, mlp, layers=(*hidden, output))


MLP = make_mlp("mlp", (784, 256, 10))
DEEP_MLP = make_mlp("deep_mlp", (784, *[64] * 7, 10))  # 8 layers: stages to distribute


# -- AlexNet's shape: five convolutions, three dense layers -----------------------

# AlexNet did not fit into one GPU of 3 GB, so its authors split the channels of every
# layer over two (Krizhevsky et al., 2012). All widths are multiples of 12: 2, 3 and 4
# devices can share them. It trains at a learning rate of 0.01.
_SHAPES: list[tuple[int, ...]] = [(12, 1, 5, 5), (24, 12, 5, 5), (36, 24, 3, 3)]
_SHAPES += [(36, 36, 3, 3), (24, 36, 3, 3), (24 * 3 * 3, 120), (120, 120), (120, 10)]
_LAYERS = (
    Layer("convolution 1", 2, partial(max_pooled, padding=2)),  # 12x14x14
    Layer("convolution 2", 2, partial(max_pooled, padding=2)),  # 24x7x7
    Layer("convolution 3", 2, partial(convolution, padding=1)),
    Layer("convolution 4", 2, partial(convolution, padding=1)),
    Layer("convolution 5", 2, partial(max_pooled, padding=1)),  # 24x3x3
    Layer("dense 1", 2, dense_relu),
    Layer("dense 2", 2, dense_relu),
    Layer("dense 3", 2, dense),
)


def alexnet(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute the logits (n, 10) of images X (n, 1, 28, 28); a pair W, b per layer."""
    return run_layers(B, _LAYERS, params, X)


ALEXNET = Model(
    "alexnet", partial(draw, shapes=_SHAPES), alexnet, alexnet, layers=_LAYERS
)
