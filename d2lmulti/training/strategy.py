"""One face for all ways to split the work: `train` does not know which one it runs.

A strategy spreads the parameters, takes a step on a whole batch, and can put the whole
together again, the optimizer's state too. Chapter: *splitting*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor, element_count
from ..checks import check_count
from ..comm.group import group_for
from ..errors import InvalidInput
from ..models.model import Model
from ..optimizers import Optimizer


class Snapshot(NamedTuple):
    """Whole parameters and optimizer state as NumPy; the statistics of each replica."""

    params: list[np.ndarray]
    state: list[np.ndarray]
    buffers: list[list[np.ndarray]]


class Batch(NamedTuple):
    """A batch, or a process's part of one: the whole batch has n targets."""

    X: Tensor  #: examples
    y: Tensor  #: their targets
    n: int  #: how many targets the whole batch has


class Strategy(ABC):
    """A way to split the work; an *owner* of parameters is a device or a stage."""

    options: ClassVar[dict[str, Any]]  # of `train`, which belong to it, and defaults
    cuts_batches: ClassVar[bool] = False  # whether a process needs only its examples
    accumulate = 1  # in how many passes a device takes its shard

    def __init__(
        self,
        params: Sequence[Tensor],
        devices: Sequence[AnyDevice],
        model: Model,
        optimizer: Optimizer,
        **options: Any,
    ) -> None:
        self.devices, self.model, self.optimizer = list(devices), model, optimizer
        self.group = group_for(len(self.devices))
        self._count = len(params) - model.buffers  # of what is trained
        vars(self).update(self.options, **options)
        self.prepare()
        self.owned = self.shard(params)
        self.states = [optimizer.init(mine) for mine in self.trained()]

    def prepare(self) -> None:
        """Check the options, and make of them what the steps need."""
        self.accumulate = check_count("accumulate", self.accumulate)

    @abstractmethod
    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Give every owner its copy of, or its part of, the whole parameters."""

    @abstractmethod
    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Put the whole together again, or tensors of the parameters' form.

        On every device, or on the first alone.
        """

    @abstractmethod
    def training_step(self) -> Callable[..., list[Tensor]]:
        """Give the function of `parallel` that takes a step, with the options."""

    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        """Take one step on a batch; the losses of all processes add up to the batch's.

        The batch is whole, but where the strategy `cuts_batches` and processes share
        the work: then it is only this process's part of it.
        """
        return self.training_step()(
            batch.X,
            batch.y,
            self.owned,
            self.devices,
            lr,
            optimizer=self.optimizer,
            states=self.states,
            **({"n": batch.n} if self.cuts_batches else {}),
        )

    def trained(self) -> list[list[Tensor]]:
        """Give what every owner's optimizer updates: all but the statistics."""
        return [mine[: len(mine) - self.model.buffers] for mine in self.owned]

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Give every owner its part of tensors of the parameters' form."""
        return self.shard(whole)

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Put the owners' parts of such tensors together again."""
        return self.gather(parts)[0]

    @property
    def shares(self) -> tuple[int, str]:
        """Into how many parts of what kind a batch is cut."""
        if self.accumulate == 1:
            return self.group.size, "devices"
        return self.group.size * self.accumulate, "devices times parts"

    def settings(self) -> dict[str, Any]:
        """Give the options in effect, for processes to compare."""
        return {name: getattr(self, name) for name in self.options}

    def held(self) -> list[list[Tensor]]:
        """Give the parameters, or parts of them, that every device holds."""
        return self.owned

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Give whole parameters, one list for each of the devices named beside them."""
        wholes = self.gather(self.owned)
        return wholes, self.devices[: len(wholes)]

    def snapshot(self) -> Snapshot:
        """Copy everything that a run needs to go on, in the form of one device."""
        B, whole = backend_of(self.owned[0][0]), self.gather(self.owned)[0]
        state: list[Tensor] = []
        sizes = [len(mine) for mine in self.trained()]
        for slot in range(self.optimizer.states_per_parameter):
            state += self.gather_state(
                [s[slot * n :][:n] for s, n in zip(self.states, sizes, strict=True)]
            )
        beside = self.optimizer.states_per_parameter * sizes[0]
        state += self.states[0][beside:]  # the same for every owner
        return Snapshot([*map(B.numpy, whole)], [*map(B.numpy, state)], [])

    def restore(self, state: Sequence[np.ndarray], buffers: Sequence[Any]) -> None:
        """Set the optimizer's state, and every replica's statistics, to saved ones.

        Raises `InvalidInput` for the state of another optimizer or model.
        """
        expected = [(s.shape, s.dtype) for s in self.snapshot().state]
        if [(s.shape, s.dtype) for s in state] != expected:
            raise InvalidInput(
                f"expected an optimizer state of {len(expected)} arrays as this run "
                f"has, got {len(state)}, or of other shapes; was it saved with "
                "another momentum?"
            )
        B, n = backend_of(self.owned[0][0]), self._count
        whole = [B.array(s) for s in state]
        end = n * self.optimizer.states_per_parameter
        parts = [self.shard_state(whole[i : i + n]) for i in range(0, end, n)]
        for owner, mine in enumerate(self.states):
            saved = [x for part in parts for x in part[owner]] + whole[end:]
            for x, y in zip(mine, saved, strict=True):
                B.write_(x, 0, element_count(x), B.detach(y))
