"""How the networks of this book are split by layers.

Layers come in pairs, one split by outputs and the next by inputs: only after the second
must the devices meet. A last layer without a partner stays whole. Chapter:
*layer_parallel*.
"""

from __future__ import annotations

from ...checks import check_flag
from ...errors import InvalidInput
from .. import get_model
from ..model import Model
from .layers import by_inputs, by_outputs, can_split, whole_layer
from .split import SplitModel
from .transformer import split_transformer


def split_layers(model: Model) -> SplitModel:
    """Split odd layers by outputs and even ones by inputs.

    A dense layer may follow a convolution: its rows come channel by channel.
    """
    last = len(model.layers) - 1
    layers = [
        by_inputs(layer) if i % 2
        else whole_layer(layer) if i == last
        else by_outputs(layer, first=i == 0)
        for i, layer in enumerate(model.layers)
    ]  # fmt: skip
    return SplitModel(model.name, model, tuple(layers))


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
    if model.layers and all(map(can_split, model.layers)):
        return split_layers(model)
    raise InvalidInput(
        "expected lenet, alexnet, a perceptron or a transformer to split by layers, "
        f"got {model.name}; write your own as a SplitModel"
    )
