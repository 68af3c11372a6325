"""Pipeline parallelism: the network is cut into stages, and every device has some.

`stages` cuts a model and puts the parameters on the devices, `executor` carries out the
devices' lists of instructions on real tensors, and `training` takes a step.
Chapter: *pipeline_parallel*.
"""

from .stages import Stage, StageParams, cut_stages, gather_stages, place_params
from .training import make_lists, train_stages

__all__ = [
    "Stage",
    "StageParams",
    "cut_stages",
    "gather_stages",
    "make_lists",
    "place_params",
    "train_stages",
]
