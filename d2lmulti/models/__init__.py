"""Networks as plain functions of (B, params, X), without layers or classes."""

from .batch_norm import LENET_BN, LENET_SYNC_BN
from .networks import ALEXNET, DEEP_MLP, LENET, MLP, MODELS, get_model, register
from .transformer import SWITCH_TRANSFORMER, TRANSFORMER

register(LENET, MLP, DEEP_MLP, ALEXNET, TRANSFORMER, SWITCH_TRANSFORMER)
register(LENET_BN, LENET_SYNC_BN)

__all__ = ["MODELS", "get_model", "register"]
