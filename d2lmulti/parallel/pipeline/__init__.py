"""Model parallelism: the network is cut into stages, and every device has some of them.

`cutting` makes stages of a model, `placing` puts their parameters on the devices,
`scheduling` proves the lists and reads from them where stages lie, `executor` carries
them out on real tensors, and `training` takes a step. Chapter: *pipeline_parallel*.
"""

from .costs import layer_seconds
from .cutting import Stage, cut_stages
from .placing import StageParams, gather_stages, place_params
from .scheduling import make_lists
from .training import train_stages

__all__ = [
    "Stage",
    "StageParams",
    "cut_stages",
    "gather_stages",
    "layer_seconds",
    "make_lists",
    "place_params",
    "train_stages",
]
