"""The ways to split the work, behind one face: `train` does not know which one it runs.

A strategy places the parameters, takes a step on a whole batch, and can show the whole
parameters again. Chapters: *splitting*, and one for each way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ..backends.protocol import AnyDevice, Tensor
from ..errors import InvalidInput
from ..models.model import Model
from ..optimizers import Optimizer
from ..parallel import pipeline, tensor
from ..parallel.data import get_params, train_batch
from ..plans.rounds import Plan


class Strategy(Protocol):
    """What the training loop needs of a way to split the work."""

    @property
    def shares(self) -> tuple[int, str]:
        """Into how many parts of what kind a batch is cut."""

    def step(self, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
        """Take one step on a whole batch; the returned losses add up to the batch's."""

    def held(self) -> list[list[Tensor]]:
        """Give the parameters, or parts of them, that every device holds."""

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Give whole parameters, one list for each of the devices named beside them."""


@dataclass
class DataParallel:
    """Every device holds the whole network and a part of each batch."""

    params: Sequence[Tensor]
    devices: list[AnyDevice]
    model: Model
    optimizer: Optimizer
    algorithm: str | Plan = "star"
    bucket_bytes: int | None = None
    _replicas: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self._replicas = [get_params(self.params, device) for device in self.devices]
        trained = len(self.params) - self.model.buffers
        self._states = [self.optimizer.start(p[:trained]) for p in self._replicas]

    @property
    def shares(self) -> tuple[int, str]:
        """A shard for each device."""
        return len(self.devices), "devices"

    def step(self, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
        """Take one step; see `train_batch`."""
        return train_batch(
            X,
            y,
            self._replicas,
            self.devices,
            lr,
            model=self.model,
            optimizer=self.optimizer,
            states=self._states,
            algorithm=self.algorithm,
            bucket_bytes=self.bucket_bytes,
        )

    def held(self) -> list[list[Tensor]]:
        """Give every device's replica."""
        return self._replicas

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Give every device's own replica."""
        return self._replicas, self.devices


@dataclass
class LayerParallel:
    """Every device holds a part of each layer, and sees the whole batch."""

    params: Sequence[Tensor]
    devices: list[AnyDevice]
    model: Model
    optimizer: Optimizer
    algorithm: str | Plan = "star"
    _shards: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self._shards = tensor.split_params(self.params, self.devices, self.model)
        self._states = [self.optimizer.start(shards) for shards in self._shards]

    @property
    def shares(self) -> tuple[int, str]:
        """A batch is not cut."""
        return 1, "devices"

    def step(self, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
        """Take one step; see `train_layers`."""
        return tensor.train_layers(
            X,
            y,
            self._shards,
            self.devices,
            lr,
            model=self.model,
            optimizer=self.optimizer,
            states=self._states,
            algorithm=self.algorithm,
        )

    def held(self) -> list[list[Tensor]]:
        """Give every device's shards."""
        return self._shards

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Gather the whole parameters on every device."""
        return tensor.gather_params(self._shards, self.model), self.devices


@dataclass
class ModelParallel:
    """Every device holds some neighbouring layers; the batch comes in micro-batches."""

    params: Sequence[Tensor]
    devices: list[AnyDevice]
    model: Model
    optimizer: Optimizer
    schedule: str = "1f1b"
    micro_batches: int = 4
    stages: int | None = None
    _placed: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        if self.stages is None:
            self.stages = len(self.devices)
        self._stages = pipeline.cut_stages(self.model, self.stages)
        self._placed = pipeline.place_params(self.params, self._stages, self.devices)
        self._states = [self.optimizer.start(placed) for placed in self._placed]

    @property
    def shares(self) -> tuple[int, str]:
        """An equal part for each micro-batch."""
        return self.micro_batches, "micro-batches"

    def step(self, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
        """Take one step; see `train_stages`."""
        return pipeline.train_stages(
            X,
            y,
            self._placed,
            self.devices,
            lr,
            stages=self._stages,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            optimizer=self.optimizer,
            states=self._states,
        )

    def held(self) -> list[list[Tensor]]:
        """Give the parameters of every device's stages."""
        k = len(self.devices)
        return [[p for placed in self._placed[d::k] for p in placed] for d in range(k)]

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Bring the stages' parameters together on the first device."""
        first = self.devices[0]
        return [pipeline.gather_params(self._placed, first)], [first]


class Maker(NamedTuple):
    """What makes a strategy, and the options of `train` that it takes."""

    make: Callable[..., Strategy]
    options: tuple[str, ...]


STRATEGIES = {
    "data": Maker(DataParallel, ("algorithm", "bucket_bytes")),
    "layer": Maker(LayerParallel, ("algorithm",)),
    "model": Maker(ModelParallel, ("schedule", "micro_batches", "stages")),
}


def make_strategy(
    name: str,
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: Model,
    optimizer: Optimizer,
    options: dict[str, Any],
) -> Strategy:
    """Place `params` on the devices as the strategy of that name does.

    Options that are None are left to the strategy. Raises `InvalidInput` for an unknown
    name and for an option that the strategy does not have.
    """
    if name not in STRATEGIES:
        raise InvalidInput(
            f"expected one of {', '.join(STRATEGIES)} as strategy, got {name!r}"
        )
    make, known = STRATEGIES[name]
    given = {key: value for key, value in options.items() if value is not None}
    if unknown := sorted(set(given) - set(known)):
        raise InvalidInput(
            f"expected only {', '.join(known)} as options of the strategy {name}, got "
            f"{', '.join(unknown)}; leave them out or choose another strategy"
        )
    return make(params, list(devices), model, optimizer, **given)
