"""Networks as plain functions of (B, params, X), without layers or classes."""

from __future__ import annotations

from ..checks import check_choice
from .alexnet import ALEXNET
from .batch_norm import LENET_BN, LENET_SYNC_BN
from .lenet import LENET
from .mlp import DEEP_MLP, MLP
from .model import Model
from .transformer import TRANSFORMER

MODELS = {
    model.name: model
    for model in (LENET, MLP, DEEP_MLP, ALEXNET, TRANSFORMER, LENET_BN, LENET_SYNC_BN)
}


def get_model(model: str | Model) -> Model:
    """Return the model of that name. Raises `InvalidInput` for an unknown name."""
    if isinstance(model, Model):
        return model
    return MODELS[check_choice("model", model, MODELS, "or make a Model of your own")]
