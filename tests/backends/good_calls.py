"""One call that works of every public function: the start of each try with nonsense.

Here are those that take tensors; the others are in `pure_calls.py`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import d2lmulti
from d2lmulti import SGD, Adam, Dataset, get_params, split_params
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.group import local_group
from d2lmulti.comm.mesh import Mesh
from d2lmulti.models.mlp import make_mlp
from d2lmulti.parallel import buckets, pipeline, sequence
from d2lmulti.parallel.mesh import gather_from_mesh, place_on_mesh, train_on_mesh
from d2lmulti.parallel.pipeline import cut_stages, place_params
from d2lmulti.plans.allreduce import ring
from d2lmulti.training import strategies

CollectiveRequest = tuple[Callable[..., Any], dict[str, Any]]
Calls = dict[str, Callable[[], CollectiveRequest]]


class World:
    """Things to call functions with, on one backend; each is made anew when asked."""

    def __init__(self, B: Backend, folder: Path) -> None:
        self.B, self.folder = B, folder
        self.model = make_mlp("small", (12, 6, 4))
        self.places = ["sim:0", "sim:1"]

    @cached_property
    def data(self) -> Dataset:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(24, 12)).astype("float32")
        y = np.arange(24) % 4
        return Dataset("small", X[:16], y[:16], X[16:], y[16:], tuple("abcd"))

    @property
    def X(self) -> Any:
        return self.B.array(self.data.train_X[:8])

    @property
    def y(self) -> Any:
        return self.B.array(self.data.train_y[:8])

    @property
    def params(self) -> list[Any]:
        start = self.model.initial(np.random.default_rng(0))
        return [self.B.array(p.astype("float32")) for p in start]

    @property
    def replicas(self) -> list[Any]:
        return [get_params(self.params, place) for place in self.places]

    @property
    def replica(self) -> list[Any]:
        return get_params(self.params, "sim:0")

    @property
    def ones(self) -> list[Any]:
        return [self.B.array(np.ones((4, 2), "float32")) for _ in range(2)]

    @property
    def tokens(self) -> dict[str, Any]:
        drawn = np.random.default_rng(0).normal(size=(3, 2, 3, 2, 4))
        parts = [[self.B.array(x) for x in each] for each in drawn]
        given = dict(zip(("queries", "keys", "values"), parts, strict=True))
        return given | {"positions": sequence.token_positions(6, 2)}

    @property
    def stages(self) -> list[Any]:
        return cut_stages(self.model, 2)

    @property
    def sharded(self) -> Any:
        return d2lmulti.shard_params(self.params, self.places, self.model)

    @property
    def mesh(self) -> Mesh:
        return Mesh(data=2)

    @property
    def placed(self) -> Any:
        return place_on_mesh(self.params, self.places, self.mesh, self.model)

    @property
    def server(self) -> d2lmulti.ParameterServer:
        server = d2lmulti.ParameterServer(self.params, self.places, 0.1)
        server.pull(0)
        return server

    def calls(self) -> Calls:
        """Give a call that works of every function that needs tensors."""
        w, name = self, self.B.name
        places = {"devices": w.places, "lr": 0.1}
        run = {"dataset": w.data, "model": w.model, "backend": name}
        run |= {"epochs": 1, "batch_size": 8, "lr": 0.01}
        momentum = SGD(0.5)
        config = d2lmulti.DeploymentConfig(2, backend=name)
        return {
            "allreduce": lambda: (d2lmulti.allreduce, {"data": w.ones}),
            "reduce": lambda: (d2lmulti.reduce, {"data": w.ones}),
            "broadcast": lambda: (d2lmulti.broadcast, {"data": w.ones}),
            "reduce_scatter": lambda: (d2lmulti.reduce_scatter, {"data": w.ones}),
            "allgather": lambda: (d2lmulti.allgather, {"data": w.ones}),
            "alltoall": lambda: (d2lmulti.alltoall, {"data": w.ones}),
            "comm.collectives.run_plan": lambda: (
                importlib.import_module("d2lmulti.comm.collectives").run_plan,
                {"data": w.ones, "rounds": list(ring(2, 8)), "group": local_group(2)},
            ),
            "backend_of": lambda: (d2lmulti.backend_of, {"x": w.X}),
            "backends.protocol.element_count": lambda: (
                importlib.import_module("d2lmulti.backends.protocol").element_count,
                {"x": w.X},
            ),
            "get_params": lambda: (get_params, {"params": w.params, "device": "sim:0"}),
            "split_batch": lambda: (
                d2lmulti.split_batch, {"X": w.X, "y": w.y, "devices": w.places},
            ),
            "train_batch": lambda: (
                d2lmulti.train_batch,
                {
                    "X": w.X, "y": w.y, **places, "device_params": w.replicas,
                    "model": w.model,
                },
            ),
            "train": lambda: (d2lmulti.train, {**run, "num_gpus": 2}),
            "train_on_servers": lambda: (
                d2lmulti.train_on_servers,
                {**run, "workers": 2, "dtype": "float32", "probe": 8},
            ),
            "evaluate": lambda: (
                d2lmulti.evaluate,
                {
                    "device_params": w.replicas, "X": w.data.test_X,
                    "y": w.data.test_y, "devices": w.places, "model": w.model,
                },
            ),
            "split_params": lambda: (
                split_params,
                {"params": w.params, "devices": w.places, "model": w.model},
            ),
            "gather_params": lambda: (
                d2lmulti.gather_params,
                {
                    "device_shards": split_params(w.params, w.places, w.model),
                    "model": w.model,
                },
            ),
            "train_layers": lambda: (
                d2lmulti.train_layers,
                {
                    "X": w.X, "y": w.y, **places, "model": w.model,
                    "device_shards": split_params(w.params, w.places, w.model),
                },
            ),
            "shard_params": lambda: (
                d2lmulti.shard_params,
                {"params": w.params, "devices": w.places, "model": w.model},
            ),
            "train_shards": lambda: (
                d2lmulti.train_shards,
                {"X": w.X, "y": w.y, **places, "sharded": w.sharded},
            ),
            "gather_shards": lambda: (
                d2lmulti.gather_shards, {"sharded": w.sharded},
            ),
            "parallel.sequence.ring_attention": lambda: (
                sequence.ring_attention, w.tokens,
            ),
            "parallel.sequence.ulysses_attention": lambda: (
                sequence.ulysses_attention, w.tokens,
            ),
            "comm.mesh.Mesh": lambda: (Mesh, {"data": 2, "tensor": 1}),
            "comm.mesh.Mesh.ranks_along": lambda: (
                w.mesh.ranks_along, {"axis": "data"},
            ),
            "comm.mesh.Mesh.coordinates": lambda: (w.mesh.coordinates, {"rank": 1}),
            "comm.mesh.Mesh.groups": lambda: (w.mesh.groups, {"axis": "data"}),
            "comm.mesh.Mesh.group_of": lambda: (
                w.mesh.group_of, {"axis": "data", "rank": 1},
            ),
            "comm.mesh.Mesh.local": lambda: (w.mesh.local, {"axis": "data"}),
            "comm.mesh.Mesh.along": lambda: (
                w.mesh.along,
                {"axis": "data", "collective": d2lmulti.allreduce, "data": w.ones},
            ),
            "parallel.mesh.place_on_mesh": lambda: (
                place_on_mesh,
                {
                    "params": w.params, "devices": w.places, "mesh": w.mesh,
                    "model": w.model,
                },
            ),
            "parallel.mesh.train_on_mesh": lambda: (
                train_on_mesh,
                {
                    "X": w.X, "y": w.y, **places, "placed": w.placed,
                    "micro_batches": 2,
                },
            ),
            "parallel.mesh.gather_from_mesh": lambda: (
                gather_from_mesh, {"placed": w.placed},
            ),
            "train_clones": lambda: (
                d2lmulti.train_clones,
                {
                    "X": w.X, "y": w.y, "params": get_params(w.params, "cpu"),
                    "config": config, "lr": 0.1, "model": w.model,
                },
            ),
            "ParameterServer": lambda: (
                d2lmulti.ParameterServer,
                {"params": w.params, "devices": w.places, "lr": 0.1},
            ),
            "ParameterServer.pull": lambda: (w.server.pull, {"worker": 0}),
            "ParameterServer.push": lambda: (
                w.server.push, {"worker": 0, "grads": w.params},
            ),
            "SGD.start": lambda: (momentum.start, {"params": w.replica}),
            "SGD.step_": lambda: (
                momentum.step_,
                {
                    "params": w.replica, "state": momentum.start(w.params),
                    "lr": 0.1, "n": 8,
                },
            ),
            "Adam.start": lambda: (Adam().start, {"params": w.replica}),
            "Adam.step_": lambda: (
                Adam().step_,
                {
                    "params": w.replica, "state": Adam().start(w.params),
                    "lr": 0.1, "n": 8,
                },
            ),
            "parallel.buckets.reduce_in_buckets": lambda: (
                entered(buckets.reduce_in_buckets), {"device_params": w.replicas},
            ),
            "parallel.pipeline.place_params": lambda: (
                place_params,
                {"params": w.params, "stages": w.stages, "devices": w.places},
            ),
            "parallel.pipeline.gather_stages": lambda: (
                pipeline.gather_stages,
                {"stage_params": place_params(w.params, w.stages, w.places)},
            ),
            "parallel.pipeline.train_stages": lambda: (
                pipeline.train_stages,
                {
                    "X": w.X, "y": w.y, **places, "stages": w.stages,
                    "micro_batches": 2,
                    "stage_params": place_params(w.params, w.stages, w.places),
                },
            ),
            "training.strategies.make_strategy": lambda: (
                strategies.make_strategy,
                {
                    "name": "data", "params": w.params, "devices": w.places,
                    "model": w.model, "optimizer": SGD(), "options": {},
                },
            ),
            "devices": lambda: (d2lmulti.devices, {"n": 2, "backend": name}),
            "try_gpu": lambda: (d2lmulti.try_gpu, {"backend": name}),
            "try_all_gpus": lambda: (d2lmulti.try_all_gpus, {"backend": name}),
            "get_backend": lambda: (d2lmulti.get_backend, {"name": name}),
        }  # fmt: skip


def entered(block: Callable[..., Any]) -> Callable[..., Any]:
    def call(**named: Any) -> None:
        with block(**named):
            pass

    call.__signature__ = inspect.signature(block)  # type: ignore[attr-defined]
    return call
