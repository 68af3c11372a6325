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
from ..parallel.data import get_params, train_batch


class Strategy(Protocol):
    """What the training loop needs of a way to split the work."""

    @property
    def shares(self) -> tuple[int, str]:
        """Into how many parts of what kind a batch is cut."""

    def step(self, X: Tensor, y: Tensor, lr: float) -> list[Tensor]:
        """Take one step on a whole batch; the returned losses add up to the batch's."""

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Give whole parameters, one list for each of the devices named beside them."""


@dataclass
class DataParallel:
    """Every device holds the whole network and a part of each batch."""

    params: Sequence[Tensor]
    devices: list[AnyDevice]
    model: Model
    optimizer: Optimizer
    algorithm: str = "star"
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

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Give every device's own replica."""
        return self._replicas, self.devices


class Maker(NamedTuple):
    """What makes a strategy, and the options of `train` that it takes."""

    make: Callable[..., Strategy]
    options: tuple[str, ...]


STRATEGIES = {
    "data": Maker(DataParallel, ("algorithm", "bucket_bytes")),
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
