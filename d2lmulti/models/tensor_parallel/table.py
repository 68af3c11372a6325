"""How the networks of this book are split by layers.

Layers come in pairs, one split by outputs and the next by inputs: only after the second
must the devices meet. A last layer without a partner stays whole. Chapter:
*layer_parallel*.
"""

from __future__ import annotations

from ...backends.protocol import Backend, Tensor
from ...checks import check_flag
from ...errors import InvalidInput
from .. import get_model
from ..alexnet import ALEXNET
from ..lenet import LENET, dense
from ..mlp import mlp
from ..model import Model
from .layers import (
    Activation,
    conv_by_inputs,
    conv_by_outputs,
    dense_by_inputs,
    dense_by_outputs,
    whole_layer,
)
from .split import SplitLayer, SplitModel
from .transformer import split_transformer


def _relu(B: Backend, H: Tensor) -> Tensor:
    return B.relu(H)


def _relu_avg_pool(B: Backend, H: Tensor) -> Tensor:
    return B.avg_pool2d(B.relu(H), 2)


def _relu_max_pool(B: Backend, H: Tensor) -> Tensor:
    return B.max_pool2d(B.relu(H), 2)


def split_mlp(model: Model) -> SplitModel:
    """Split a perceptron of `make_mlp`: odd layers by outputs, even ones by inputs."""
    layers: list[SplitLayer] = []
    for i, layer in enumerate(model.layers):
        last = i == len(model.layers) - 1
        after: Activation | None = None if last else _relu
        if i % 2:
            layers.append(dense_by_inputs(layer.name, after))
        elif last:
            layers.append(whole_layer(layer.name, dense, layer.params))
        else:
            layers.append(dense_by_outputs(layer.name, after, first=i == 0))
    return SplitModel(model.name, model, tuple(layers))


SPLIT_LENET = SplitModel(
    "lenet",
    LENET,
    (
        conv_by_outputs("convolution 1", _relu_avg_pool, first=True),
        conv_by_inputs("convolution 2", _relu_avg_pool),
        dense_by_outputs("dense 1", _relu),
        dense_by_inputs("dense 2"),
    ),
)

SPLIT_ALEXNET = SplitModel(
    "alexnet",
    ALEXNET,
    (
        conv_by_outputs("convolution 1", _relu_max_pool, padding=2, first=True),
        conv_by_inputs("convolution 2", _relu_max_pool, padding=2),
        conv_by_outputs("convolution 3", _relu, padding=1),
        conv_by_inputs("convolution 4", _relu, padding=1),
        conv_by_outputs("convolution 5", _relu_max_pool, padding=1),
        dense_by_inputs("dense 1", _relu),  # its rows come channel by channel
        dense_by_outputs("dense 2", _relu),
        dense_by_inputs("dense 3"),
    ),
)


def get_split(model: str | Model | SplitModel, sequence: bool = False) -> SplitModel:
    """Return the split version of a model, with `sequence` of a transformer by tokens.

    Models of `make_mlp` and `make_transformer` have one, LeNet and AlexNet too. Raises
    `InvalidInput` for the others, and for `sequence` where there are no tokens.
    """
    check_flag("sequence", sequence)
    if isinstance(model, SplitModel):
        return model
    model = get_model(model)
    if model.vocabulary or sequence:
        return split_transformer(model, sequence)
    if model.forward is mlp:
        return split_mlp(model)
    for split in (SPLIT_LENET, SPLIT_ALEXNET):
        if model is split.whole:
            return split
    raise InvalidInput(
        "expected lenet, alexnet, a perceptron or a transformer to split by layers, "
        f"got {model.name}; split a network of your own with models.split_layers"
    )
