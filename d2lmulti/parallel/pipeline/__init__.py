"""Model parallelism: the network is cut into stages, and every device has some of them.

`cutting` makes stages of a model, `placing` puts their parameters on the devices,
`executor` carries out the instructions of any schedule on real tensors, and `training`
takes a step with it. Chapter: *model_parallel*.
"""

from .costs import layer_seconds
from .cutting import Stage, cut_stages
from .placing import gather_params, place_params
from .training import train_stages

__all__ = [
    "Stage",
    "cut_stages",
    "gather_params",
    "layer_seconds",
    "place_params",
    "train_stages",
]
