"""All parallelism strategies at once: replicas, split layers and stages on one mesh.

A replica is a pipeline (axis `pipeline`) of stages, each of which is held by ranks with
a part of every layer (axis `tensor`), with some tokens of every example (`sequence`),
and with some of the experts (`expert`); replicas (`data`) share the batch, and, with
ZeRO 1, the optimizer's state. Chapter: *composing*.
Source: Narayanan et al. (2021).
"""

from .placement import MeshParams, gather_from_mesh, place_on_mesh
from .training import mesh_lists, train_on_mesh

__all__ = [
    "MeshParams",
    "gather_from_mesh",
    "mesh_lists",
    "place_on_mesh",
    "train_on_mesh",
]
