"""The interface of all parallelism strategies, which `train` uses.

A strategy is a dataclass of its options. It places the parameters, takes a step on a
batch, and gathers the unsharded tensors again, the optimizer's state too.
Chapter: *splitting*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Tensor
from ..checks import MAX_INDEX, check_choice, check_count
from ..comm.group import group_for
from ..errors import InvalidInput
from ..models.networks import Model
from ..optimizers import Optimizer


class Snapshot(NamedTuple):
    """Unsharded parameters and optimizer state, and each replica's statistics."""

    params: list[np.ndarray]
    state: list[np.ndarray]
    buffers: list[list[np.ndarray]]


class Batch(NamedTuple):
    """A batch, or one process's shard of it; the whole batch has n targets."""

    X: Tensor  #: examples
    y: Tensor  #: their targets
    n: int  #: number of targets in the whole batch


def option(
    default: Any,
    help: str,
    *,
    min: int = 1,
    max: int = MAX_INDEX,
    choices: Iterable[str] = (),
    check: Callable[[str, Any], Any] | None = None,
    **command_line: Any,
) -> Any:
    """Declare an option of a strategy: a whole number from `min` to `max`.

    Or one of `choices`, or a function; or the value that `check(name, value)` returns.
    For the command line, `read` parses a text, and `flag` is another name.
    """
    about = {"help": help, "min": min, "max": max, "choices": list(choices)}
    return field(default=default, metadata={**about, "check": check, **command_line})


@dataclass(eq=False)
class Strategy(ABC):
    """A parallelism strategy; an *owner* of parameters is a device or a stage.

    The fields of a subclass are its options. `train`, its docstring and the command
    line take names, defaults, help and checks from there.
    """

    #: whether each process needs only its own shard of a batch
    cuts_batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for option in fields(self):
            name, about = option.name, option.metadata
            value = getattr(self, name)
            if value is None or about["choices"] and callable(value):
                continue
            if about["check"]:
                value = about["check"](name, value)
            elif about["choices"]:
                check_choice(name, value, about["choices"])
            else:
                value = check_count(name, value, about["min"], about["max"])
            setattr(self, name, value)

    def prepare(self, devices: Sequence[AnyDevice], model: Model) -> None:
        """Resolve the options that depend on the devices and the model."""
        self.devices, self.model = list(devices), model
        self.group = group_for(len(self.devices))
        self.batch_parts = self.group.size  # the number of parts of a batch

    def place(self, params: Sequence[Tensor], optimizer: Optimizer) -> None:
        """Place parameters on the devices and make the optimizer's states."""
        self.optimizer, self.trainable = optimizer, len(params) - self.model.buffers
        self.owned: Any = self.shard(params)
        self.states = [optimizer.init(params) for params in self.trained()]

    @abstractmethod
    def shard(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return every owner's copy or shards of the unsharded parameters."""

    @abstractmethod
    def gather(self, owned: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Return unsharded tensors for every device, or for the first alone.

        `owned` is laid out as the parameters; it may be the optimizer's state.
        """

    @abstractmethod
    def step(self, batch: Batch, lr: float) -> list[Tensor]:
        """Take one step; the losses of all processes add up to those of the batch.

        With `cuts_batches`, in a group of processes, the batch is this process's shard.
        """

    def options(self) -> dict[str, Any]:
        """Return the options in effect."""
        return {option.name: getattr(self, option.name) for option in fields(self)}

    def settings(self) -> dict[str, Any]:
        """Return the settings that all processes must share: the options in effect."""
        return self.options()

    def trained(self) -> list[list[Tensor]]:
        """Return the tensors that every owner's optimizer updates: no statistics."""
        return [params[: len(params) - self.model.buffers] for params in self.owned]

    def shard_state(self, whole: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return every owner's shards of tensors with the parameters' shapes."""
        return self.shard(whole)

    def gather_state(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return the unsharded tensors of the owners' shards."""
        return self.gather(parts)[0]

    def held(self) -> list[list[Tensor]]:
        """Return the parameters, or shards of them, that every device holds."""
        return self.owned

    def replicas(self) -> tuple[list[list[Tensor]], list[AnyDevice]]:
        """Return lists of unsharded parameters, and the device of each list."""
        wholes = self.gather(self.owned)
        return wholes, self.devices[: len(wholes)]

    def snapshot(self) -> Snapshot:
        """Copy the state that a run needs to resume, unsharded."""
        B, whole = backend_of(self.owned[0][0]), self.gather(self.owned)[0]
        state: list[Tensor] = []
        sizes = [len(params) for params in self.trained()]
        for slot in range(self.optimizer.states_per_parameter):
            state += self.gather_state(
                [s[slot * n :][:n] for s, n in zip(self.states, sizes, strict=True)]
            )
        first = self.optimizer.states_per_parameter * sizes[0]
        state += self.states[0][first:]  # the same for every owner
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
        B, n = backend_of(self.owned[0][0]), self.trainable
        whole = [B.array(s) for s in state]
        end = n * self.optimizer.states_per_parameter
        parts = [self.shard_state(whole[i : i + n]) for i in range(0, end, n)]
        for owner, states in enumerate(self.states):
            saved = [x for part in parts for x in part[owner]] + whole[end:]
            for x, y in zip(states, saved, strict=True):
                B.write_(x, 0, element_count(x), B.detach(y))
