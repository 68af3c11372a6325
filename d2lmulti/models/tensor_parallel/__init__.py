"""Tensor-parallel versions of the models. Chapter: *tensor_parallel*.

`layers` has those of dense and convolutional networks, `transformer` that of the
transformer.
"""

from __future__ import annotations

from ...errors import InvalidInput
from .. import get_model
from ..networks import Model
from .layers import SplitModel, can_split, split_layers
from .transformer import split_transformer


def get_split(model: str | Model | SplitModel) -> SplitModel:
    """Return the split version of a model.

    Models of `make_mlp` and `make_transformer` have one, and LeNet and AlexNet. Raises
    `InvalidInput` for others.
    """
    if isinstance(model, SplitModel):
        return model
    model = get_model(model)
    if model.vocabulary:
        return split_transformer(model)
    if model.layers and all(map(can_split, model.layers)):
        return split_layers(model)
    raise InvalidInput(
        "expected lenet, alexnet, a perceptron or a transformer to split by layers, "
        f"got {model.name}; write your own as a SplitModel"
    )
