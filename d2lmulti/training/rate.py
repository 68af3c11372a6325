"""The learning rate of every step: one number, or a schedule that warms up and decays.

A schedule is data with one method, so processes can compare it and a checkpoint can
describe it. Chapter: *large_batch*. Source: Goyal et al. (2017).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import check_count, check_positive
from ..errors import InvalidInput


class Schedule(ABC):
    """The learning rate as a function of the step; subclasses are data classes."""

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0 over the whole run."""


def rate_at(lr: float | Schedule, step: int) -> float:
    """Return the learning rate of a step, counted from 0; a number holds for all steps.

    >>> rate_at(GradualWarmup(0.1, 4, 0.5), 1)
    0.2
    """
    return lr.rate(step) if isinstance(lr, Schedule) else lr


@dataclass(frozen=True)
class GradualWarmup(Schedule):
    """Rise linearly from `start`; after `steps` steps `then` takes over."""

    start: float  #: learning rate of the first step
    steps: int  #: length of the rise
    then: float | Schedule  #: its steps also count from the start of the run

    def __post_init__(self) -> None:
        check_positive("start", self.start)
        make_rate(self.then, name="then")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step >= self.steps:
            return rate_at(self.then, step)
        rise = rate_at(self.then, self.steps) - self.start
        return self.start + rise * (step / self.steps)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiply the learning rate by `factor` at each of the steps `at`."""

    lr: float  #: the learning rate before the first decay
    at: Sequence[int]  #: steps
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        check_positive("factor", self.factor)
        object.__setattr__(self, "at", tuple(self.at))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.lr * self.factor ** sum(step >= first for first in self.at)


def make_rate(lr: Any, warmup: Any = None, name: str = "lr") -> float | Schedule:
    """Return `lr`, a positive number or a schedule, or one that rises from lr / warmup.

    Raises `InvalidInput` for a schedule with a warm-up.
    """
    if not isinstance(lr, Schedule):
        check_positive(name, lr, "try 0.05, or a schedule such as StepDecay(...)")
    if warmup is None:
        return lr
    warmup = check_count("warmup", warmup)
    if isinstance(lr, Schedule):
        raise InvalidInput(
            "expected a number as lr with warmup; put GradualWarmup into the schedule"
        )
    return GradualWarmup(lr / warmup, warmup, lr)
