"""The ways to split the work as strategies, and the table of their names.

Chapters: *splitting*, *data_parallel*, *layer_parallel*, *model_parallel*, *sharding*,
*composing*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor, element_count
from ..checks import check_choice, check_kind, check_list
from ..comm.collectives import allgather, usual_algorithm
from ..errors import InvalidInput
from ..models import get_model
from ..models.model import Model
from ..optimizers import Optimizer, make_optimizer
from ..parallel import pipeline, tensor
from ..parallel.buckets import reduce_in_buckets
from ..parallel.data import Reducer, get_params, train_batch
from ..plans.rounds import Plan
from ..plans.schedules import CHUNKS
from .accumulate import check_accumulates, train_in_parts
from .on_mesh import OnMesh
from .sharded import Sharded
from .strategy import Snapshot, Strategy


class DataParallel(Strategy):
    """Every device holds the whole network and a part of each batch."""

    options: ClassVar = {"algorithm": None, "bucket_bytes": None, "accumulate": 1}
    cuts_batches = True
    algorithm: str | Plan
    bucket_bytes: int | None

    def prepare(self) -> None:
        """Choose what sums up the gradients."""
        super().prepare()
        check_accumulates(self.model, self.accumulate)
        self.algorithm = self.algorithm or usual_algorithm(self.group)
        self.reducer: Reducer | None = None
        if self.bucket_bytes is not None:
            self.reducer = partial(reduce_in_buckets, bucket_bytes=self.bucket_bytes)

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Copy everything to every device."""
        return [get_params(whole, device) for device in self.devices] if whole else []

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Give every device's own replica: all are equal, but for statistics."""
        return [*map(list, owned)]

    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give `train_batch`, or `train_in_parts`."""
        step: Callable[..., list[Tensor]] = train_batch
        if self.accumulate > 1:
            step = partial(train_in_parts, parts=self.accumulate)
        return partial(
            step, model=self.model, algorithm=self.algorithm, reducer=self.reducer
        )

    def snapshot(self) -> Snapshot:
        """Add the statistics, which each replica has gathered for itself."""
        B = backend_of(self.owned[0][0])
        each = [mine[self._count :] for mine in self.owned]
        if self.group.is_distributed:  # a row for every rank
            rows = [
                [x.reshape((1, *x.shape)) for x in same]
                for same in zip(*each, strict=True)
            ]
            tables = [allgather(row, self.group)[0] for row in rows]
            each = [[t[rank] for t in tables] for rank in range(self.group.size)]
        buffers = [[B.numpy(x) for x in mine] for mine in each]
        return super().snapshot()._replace(buffers=buffers)

    def restore(self, state: Sequence[np.ndarray], buffers: Sequence[Any]) -> None:
        """Set the state and the statistics; with more replicas, in turn."""
        super().restore(state, buffers)
        if not self.model.buffers:
            return
        B = backend_of(self.owned[0][0])
        own = [B.numpy(x).shape for x in self.owned[0][self._count :]]
        if not buffers or any([x.shape for x in row] != own for row in buffers):
            raise InvalidInput(
                f"expected statistics of shapes {own!r:.80} for every replica, got "
                "others; was it saved by another strategy?"
            )
        for rank, mine in zip(self.group.local_ranks, self.owned, strict=True):
            for x, saved in zip(mine[self._count :], buffers[rank % len(buffers)],
                                strict=True):  # fmt: skip
                B.write_(x, 0, element_count(x), B.array(saved))


class LayerParallel(Strategy):
    """Every device holds a part of each layer, and sees the whole batch."""

    options: ClassVar = {"algorithm": "star"}
    algorithm: str | Plan

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Cut every parameter into shards."""
        return tensor.split_params(whole, self.devices, self.model)

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Join the shards, on every device."""
        return tensor.gather_params(owned, self.model)

    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give `train_layers`."""
        return partial(tensor.train_layers, model=self.model, algorithm=self.algorithm)

    @property
    def shares(self) -> tuple[int, str]:
        """A batch is not cut."""
        return 1, "devices"


class ModelParallel(Strategy):
    """Every device holds some neighbouring layers; the batch comes in micro-batches."""

    options: ClassVar = {"schedule": "1f1b", "micro_batches": 4, "stages": None}
    schedule: Any  # a name, or a function
    micro_batches: int
    stages: int

    def prepare(self) -> None:
        """Cut the stages, and read from the schedule where they lie."""
        if self.stages is None:
            self.stages = self.group.size * CHUNKS.get(self.schedule, 1)
        self.cut = pipeline.cut_stages(self.model, self.stages)
        _, self.ranks = pipeline.make_lists(
            self.schedule, self.stages, self.micro_batches, self.group
        )

    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Put every stage's parameters on its device."""
        return pipeline.place_params(whole, self.cut, self.devices, self.ranks)

    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Bring the stages together on the first device."""
        placed = pipeline.StageParams(map(list, owned), self.ranks)
        return [pipeline.gather_stages(placed, self.devices[0])]

    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give `train_stages`."""
        return partial(
            pipeline.train_stages,
            stages=self.cut,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
        )

    def settings(self) -> dict[str, Any]:
        """Give the options in effect; of a schedule of the user's own, its lists."""
        found = super().settings()
        if callable(self.schedule):
            p = self.group.size
            found["schedule"] = self.schedule(p, self.micro_batches, self.stages // p)
        return found

    @property
    def shares(self) -> tuple[int, str]:
        """An equal part for each micro-batch."""
        return self.micro_batches, "micro-batches"

    def held(self) -> list[list[Tensor]]:
        """Give the parameters of every device's stages."""
        local = self.group.local_ranks
        ranks = [rank for rank in self.ranks if rank in local]
        owned = [*zip(ranks, self.owned, strict=True)]
        return [[p for r, mine in owned if r == rank for p in mine] for rank in local]


STRATEGIES: dict[str, type[Strategy]] = {
    "data": DataParallel,
    "layer": LayerParallel,
    "model": ModelParallel,
    "sharded": Sharded,
    "mesh": OnMesh,
}


def make_strategy(
    name: str,
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: Model,
    optimizer: Optimizer,
    options: dict[str, Any],
) -> Strategy:
    """Spread `params` over the devices as the strategy of that name does.

    Options that are None are left to the strategy. Raises `InvalidInput` for an unknown
    name and for an option that the strategy does not have.
    """
    check_choice("strategy", name, STRATEGIES)
    check_list("params", params, "tensors")
    check_list("devices", devices, "devices", hint="use devices(1)")
    model, optimizer = get_model(model), make_optimizer(optimizer)
    check_kind("options", options, dict, "a dictionary")
    known = STRATEGIES[name].options
    given = {key: value for key, value in options.items() if value is not None}
    if unknown := sorted(set(given) - set(known)):
        raise InvalidInput(
            f"expected only {', '.join(known)} as options of the strategy {name}, got "
            f"{', '.join(unknown)}; leave them out or choose another strategy"
        )
    return STRATEGIES[name](params, devices, model, optimizer, **given)
