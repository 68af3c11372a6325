"""The five parallelism strategies and the options of each.

Chapters: *splitting*, *data_parallel*, *tensor_parallel*, *pipeline_parallel*,
*sharding*, *composing*.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_choice, invalid
from ..comm.collectives import allgather, usual_algorithm
from ..comm.mesh import Mesh, check_axes
from ..errors import InvalidInput
from ..models.networks import Model
from ..optimizers import Optimizer
from ..parallel import flat_parameters, pipeline, tensor
from ..parallel.buckets import reduce_in_buckets
from ..parallel.data import Reducer, check_accumulates, get_params, train_batch
from ..parallel.flat_parameters import PRECISIONS, ShardedParams
from ..parallel.mesh import (
    MeshParams,
    gather_from_mesh,
    gather_parts,
    mesh_lists,
    place_on_mesh,
    train_on_mesh,
)
from ..parallel.sharded import train_shards
from ..plans.allreduce import ALLREDUCE
from ..plans.rounds import Plan
from ..plans.schedules import CHUNKS, SCHEDULES, Schedule
from .strategy import Batch, Snapshot, Strategy, option

Function = TypeVar("Function", bound=Callable[..., Any])


def read_megabytes(text: str) -> int:
    """Read a size in MiB as bytes."""
    size = float(text) * 2**20
    if not math.isfinite(size):
        raise ValueError(text)
    return int(size)


def read_axes(text: str) -> dict[str, int]:
    """Read sizes of axes, such as data=2,tensor=2."""
    pairs = [part.partition("=") for part in text.split(",")]
    sizes = {axis.strip(): int(size) for axis, _, size in pairs}
    if len(sizes) < len(pairs):
        raise ValueError(text)
    return sizes


def check_mesh(name: str, value: Any) -> dict[str, int]:
    """Return the sizes of the axes of a mesh."""
    if not isinstance(value, Mapping):
        raise invalid(
            f"sizes of axes as {name}", value, "pass {'data': 2, 'tensor': 2}"
        )
    return check_axes(dict(value))


# Options that several strategies have.


@dataclass(eq=False)
class WithAllReduce(Strategy):
    """A strategy that sums over its devices."""

    algorithm: str | Plan = option(
        None,
        "of the all-reduce (default: star, or native where that is all there is)",
        choices=(*ALLREDUCE, "auto", "native"),
    )

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        self.algorithm = self.algorithm or usual_algorithm(self.group)


@dataclass(eq=False)
class OfBatches(Strategy):
    """A strategy in which every device takes a shard of each batch."""

    accumulate: int = option(1, "passes in which a device takes its shard of a batch")
    cuts_batches: ClassVar[bool] = True

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        self.batch_parts *= self.accumulate


@dataclass(eq=False)
class WithStages(Strategy):
    """A strategy that cuts the model into stages, and batches into micro-batches."""

    schedule: str | Schedule = option(
        "1f1b", "order of the stages' work", choices=SCHEDULES
    )
    micro_batches: int = option(4, "parts into which a batch is cut")
    stages: int = option(
        None, "stages of the model, a multiple of the devices (default: one per device)"
    )


@dataclass(eq=False)
class DataParallel(WithAllReduce, OfBatches):
    """Every device holds the whole network and takes a shard of each batch."""

    bucket_bytes: int | None = option(
        None, "sum the gradients in buckets of this size",
        flag="--bucket-mb", metavar="MB", read=read_megabytes,
    )  # fmt: skip

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        check_accumulates(model, self.accumulate)
        self.reducer: Reducer | None = None
        if self.bucket_bytes is not None:
            self.reducer = partial(reduce_in_buckets, bucket_bytes=self.bucket_bytes)

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        return [get_params(whole, device) for device in self.devices] if whole else []

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [*map(list, owned)]  # all are equal, except for statistics

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        return train_batch(
            batch.X, batch.y, self.owned, self.devices, lr,
            model=self.model, optimizer=self.optimizer, states=self.states,
            algorithm=self.algorithm, reducer=self.reducer,
            accumulate=self.accumulate, n=batch.n,
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        """Copy the state, and the statistics of every replica."""
        B = backend_of(self.owned[0][0])
        statistics = [params[self.trainable :] for params in self.owned]
        if self.group.is_distributed:  # a row for every rank
            rows = [
                [x.reshape((1, *x.shape)) for x in same]
                for same in zip(*statistics, strict=True)
            ]
            tables = [allgather(row, self.group)[0] for row in rows]
            statistics = [[t[rank] for t in tables] for rank in range(self.group.size)]
        buffers = [[B.numpy(x) for x in params] for params in statistics]
        return super().snapshot()._replace(buffers=buffers)

    def restore(self, state: Sequence[np.ndarray], buffers: Sequence[Any]) -> None:
        """Set the state and the statistics, which more replicas reuse in turn."""
        super().restore(state, buffers)
        if not self.model.buffers:
            return
        B = backend_of(self.owned[0][0])
        shapes = [B.numpy(x).shape for x in self.owned[0][self.trainable :]]
        if not buffers or any([x.shape for x in row] != shapes for row in buffers):
            raise InvalidInput(
                f"expected statistics of shapes {shapes!r:.80} for every replica, got "
                "others; was it saved by another strategy?"
            )
        for rank, params in zip(self.group.local_ranks, self.owned, strict=True):
            saved = buffers[rank % len(buffers)]
            for x, y in zip(params[self.trainable :], saved, strict=True):
                B.write_(x, 0, element_count(x), B.array(y))


@dataclass(eq=False)
class TensorParallel(WithAllReduce):
    """Every device holds a shard of each layer and sees the whole batch."""

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        self.batch_parts = 1

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        return tensor.split_params(whole, self.devices, self.model)

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return tensor.gather_params(owned, self.model)

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        return tensor.train_layers(
            batch.X, batch.y, self.owned, self.devices, lr,
            model=self.model, optimizer=self.optimizer, states=self.states,
            algorithm=self.algorithm,
        )  # fmt: skip


@dataclass(eq=False)
class PipelineParallel(WithStages):
    """Every device holds neighboring layers; batches are cut into micro-batches."""

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        if self.stages is None:  # two on each device under zb_v
            self.stages = self.group.size * CHUNKS.get(str(self.schedule), 1)
        self.batch_parts = self.micro_batches
        self.cut = pipeline.cut_stages(model, self.stages)
        self.lists, self.ranks = pipeline.make_lists(
            self.schedule, self.stages, self.micro_batches, self.group
        )

    def settings(self) -> dict[str, Any]:
        """Return the options in effect, and for a function as schedule its lists."""
        schedule = {"schedule": self.lists} if callable(self.schedule) else {}
        return super().settings() | schedule

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        return pipeline.place_params(whole, self.cut, self.devices, self.ranks)

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        placed = pipeline.StageParams(map(list, owned), self.ranks, self.group)
        return [pipeline.gather_stages(placed, self.devices[0])]

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        return pipeline.train_stages(
            batch.X, batch.y, self.owned, self.devices, lr,
            stages=self.cut, optimizer=self.optimizer, states=self.states,
            schedule=self.schedule, micro_batches=self.micro_batches,
        )  # fmt: skip

    def held(self) -> list[list[Tensor]]:
        """Return the parameters of every device's stages."""
        local = self.group.local_ranks
        ranks = [rank for rank in self.ranks if rank in local]
        owned = [*zip(ranks, self.owned, strict=True)]
        return [[p for r, held in owned if r == rank for p in held] for rank in local]


@dataclass(eq=False)
class Sharded(OfBatches):
    """Data parallelism with a shard of each layer per device (ZeRO, FSDP)."""

    zero: int = option(
        3, "what is sharded: 1 optimizer state, 2 also gradients, 3 also weights", max=3
    )
    precision: str | None = option(
        None, "compute and send in 16 bits, update in 32 (default: 32)",
        choices=PRECISIONS,
    )  # fmt: skip

    def shard(self, whole: Sequence[Tensor]) -> ShardedParams:
        return flat_parameters.shard_params(
            whole, self.devices, self.model, self.zero, precision=self.precision
        )

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return flat_parameters.gather_shards(self.owned)

    def trained(self) -> list[list[Tensor]]:
        return self.owned.parts()

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        return flat_parameters.shard_params(whole, self.devices, self.model, 3)

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        gathered = flat_parameters.gather_parts(parts)
        return flat_parameters.unflatten(self.owned.flat_params, gathered)[0]

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        return train_shards(
            batch.X, batch.y, self.owned, self.devices, lr,
            optimizer=self.optimizer, states=self.states, n=batch.n,
            accumulate=self.accumulate,
        )  # fmt: skip


@dataclass(eq=False)
class OnMesh(WithStages, WithAllReduce):
    """All strategies at once, each along its axis of a mesh of devices."""

    mesh: Mapping[str, int] | None = option(
        None,
        "sizes of the axes data, tensor, pipeline, sequence (the tokens of an example) "
        "and expert (of a mixture)",
        check=check_mesh, read=read_axes, metavar="AXIS=SIZE,...",
    )  # fmt: skip
    zero: int = option(0, "1 shards the optimizer state along data", min=0, max=1)

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        super().prepare(devices, model)
        sizes = check_mesh("mesh", self.mesh)
        replicas = sizes.get("data", 1) * sizes.get("expert", 1)
        self.batch_parts = replicas * self.micro_batches
        self.axes = Mesh(self.group, **sizes)

    def shard(self, whole: Sequence[Tensor]) -> MeshParams:
        placed = place_on_mesh(
            whole, self.devices, self.axes, self.model,
            stages=self.stages, zero=self.zero,
        )  # fmt: skip
        mesh_lists(placed, self.schedule, self.micro_batches)
        return placed

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return gather_from_mesh(self.owned.like(owned))

    def trained(self) -> list[list[Tensor]]:
        return self.owned.parts()

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        return self.shard(whole).parts()

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        if self.zero:
            parts = gather_parts(self.owned, parts)
        return super().gather_state(parts)

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        return train_on_mesh(
            batch.X, batch.y, self.owned, self.devices, lr,
            optimizer=self.optimizer, states=self.states, algorithm=self.algorithm,
            schedule=self.schedule, micro_batches=self.micro_batches,
        )  # fmt: skip


STRATEGIES: dict[str, type[Strategy]] = {
    "data": DataParallel,
    "tensor": TensorParallel,
    "pipeline": PipelineParallel,
    "sharded": Sharded,
    "mesh": OnMesh,
}


def option_help() -> dict[str, str]:
    """Return the help of every option: its meaning, default, and strategies."""
    texts_of: dict[str, dict[str, list[str]]] = {}
    for strategy, options in STRATEGIES.items():
        for about in fields(options):
            default = "" if about.default is None else f" (default: {about.default})"
            text = about.metadata["help"] + default
            texts_of.setdefault(about.name, {}).setdefault(text, []).append(strategy)
    return {
        name: "; ".join(f"{t}, with {', '.join(of)}" for t, of in texts.items())
        for name, texts in texts_of.items()
    }


def with_options(function: Function) -> Function:
    """Add the strategies' options to the signature and docstring of a function."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in option_help()
    ]
    documented: Any = function
    documented.__signature__ = signature.replace(parameters=[*own, *options])
    lines = [f"\n    :param {name}: {text}" for name, text in option_help().items()]
    documented.__doc__ = (function.__doc__ or "").rstrip() + "".join(lines) + "\n"
    return function


def choose_strategy(name: str, options: Mapping[str, Any]) -> Strategy:
    """Return the strategy of that name with these options.

    Options that are None keep their default. Raises `InvalidInput` for an unknown name
    and for an option that the strategy does not have.
    """
    strategy = STRATEGIES[check_choice("strategy", name, STRATEGIES)]
    known = [about.name for about in fields(strategy)]
    given = {key: value for key, value in options.items() if value is not None}
    if unknown := sorted(set(given) - set(known)):
        raise InvalidInput(
            f"expected only {', '.join(known)} as options of the strategy {name}, got "
            f"{', '.join(unknown)}; leave them out or choose another strategy"
        )
    return strategy(**given)


def make_strategy(
    name: str,
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: Model,
    optimizer: Optimizer,
    options: Mapping[str, Any],
) -> Strategy:
    """Return a strategy with `params` placed on the devices.

    See `choose_strategy` for name and options.
    """
    strategy = choose_strategy(name, options)
    strategy.prepare(devices, model)
    strategy.place(params, optimizer)
    return strategy
