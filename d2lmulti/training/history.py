"""The result of a training run, and what its processes exchange to agree on it.

Each process sees its own losses and messages only, and all must end with the same
history. They exchange short texts, which no ledger counts.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..comm.group import Group
from ..errors import Diverged, PeerError
from ..observe.ledger import Ledger


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch."""

    loss: float  # mean over the training examples, during the epoch
    accuracy: float  # on the test set, after the epoch
    seconds: float  # training only, without evaluation
    bytes_moved: int  # between devices


@dataclass
class History:
    """A finished training run: its settings, its epochs, its parameters."""

    settings: dict[str, Any]  #: the arguments of `train`
    devices: list[str]  #: by name, in rank order
    epochs: list[Epoch] = field(default_factory=list)  #: one entry per epoch
    #: the trained parameters, one list per device
    device_params: list[list[Tensor]] = field(default_factory=list, repr=False)

    @property
    def losses(self) -> list[float]:
        """Training loss of every epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after every epoch."""
        return [epoch.accuracy for epoch in self.epochs]

    @property
    def bytes_moved(self) -> int:
        """Bytes between devices over the whole run."""
        return sum(epoch.bytes_moved for epoch in self.epochs)

    def as_json(self) -> dict[str, Any]:
        """Return everything but the parameters, as plain JSON values."""
        run = {"devices": self.devices, "bytes_moved": self.bytes_moved}
        return {**self.settings, **run, "epochs": [asdict(e) for e in self.epochs]}


def allgather_values(group: Group, value: Any) -> list[Any]:
    """Return the value of each process, of plain JSON types, in rank order."""
    if not group.is_distributed:
        return [value]
    return [json.loads(text) for text in group.engine.allgather_text(json.dumps(value))]


def on_rank_zero(group: Group, work: Callable[[], object]) -> None:
    """Run `work` in the process of rank 0 while the others wait; fail together.

    Raises what `work` raises, and `PeerError` in the other processes.
    """
    error: Exception | None = None
    if group.leader:
        try:
            work()
        except Exception as e:
            error = e
    message = allgather_values(group, str(error) if error else "")[0]
    if error:
        raise error
    if message:
        raise PeerError(f"rank 0 failed to handle the files of this run: {message}")


def add_up(loss: float, losses: Iterable[float]) -> float:
    """Add losses to `loss` one by one, from left to right.

    Only so is the sum of an epoch also the sum of its parts, bit for bit: since Python
    3.12 the built-in `sum` carries the rounding errors along and drops them at its end.
    """
    for x in losses:
        loss += x
    return loss


class EpochTotals:
    """Sum losses, seconds and bytes of an epoch over all processes."""

    def __init__(self, group: Group, moved: Ledger, epoch: int, step: int) -> None:
        self.group, self.moved = group, moved
        self.epoch, self.step = epoch, step  # the position, both from 0
        self._steps: list[tuple[Sequence[Tensor], int]] = []  # losses and targets
        self._last_finite: float | None = None
        self._began = time.perf_counter()

    def record(self, losses: Sequence[Tensor], targets: int) -> None:
        """Keep a step's local losses, which are summed over so many targets in all."""
        self._steps.append((losses, targets))

    def collect(self, loss: float) -> tuple[float, float, int]:
        """Return `loss` plus the losses recorded since the last call, seconds, bytes.

        The sum adds the losses in the same order as one process would: step by step,
        and rank by rank in each step. Each process counts the bytes it received.
        Raises `Diverged` for a loss that is not finite.
        """
        losses = [
            [float(backend_of(x).numpy(x)) for x in step] for step, _ in self._steps
        ]
        seconds, count = time.perf_counter() - self._began, self.moved.bytes
        if self.group.is_distributed:
            received = sum(self.moved.received[rank] for rank in self.group.local_ranks)
            gathered = allgather_values(self.group, [losses, seconds, received])
            by_step = zip(*(values[0] for values in gathered), strict=True)
            losses = [[x for rank in step for x in rank] for step in by_step]
            seconds = max(values[1] for values in gathered)
            count = sum(values[2] for values in gathered)
        for step, (_, targets) in zip(losses, self._steps, strict=True):
            self._check(add_up(0.0, step) / targets)
        self._steps.clear()
        return add_up(loss, (x for step in losses for x in step)), seconds, count

    def _check(self, mean: float) -> None:
        self.step += 1
        if not math.isfinite(mean):
            before = "there was none before"
            if self._last_finite is not None:
                before = f"the last one before was {self._last_finite:.4g}"
            raise Diverged(
                f"expected a finite loss, got {mean} in epoch {self.epoch + 1}, step "
                f"{self.step}; {before}. Try a tenth of the learning rate, and check "
                "the data for very large values"
            )
        self._last_finite = mean


def check_state(arrays: Iterable[np.ndarray], when: str) -> None:
    """Raise `Diverged` for a value of the run's state that is not finite."""
    for i, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise Diverged(
                f"expected finite values, got nan or inf in array {i} of parameters "
                f"and optimizer state {when}; try a tenth of the learning rate"
            )
