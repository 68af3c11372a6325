"""The learning rate of every step: one number, or a schedule that warms up and decays.

A schedule is data with one method, so processes can compare it and a checkpoint can
name it. Beside it the two rules that say how the rate grows with the batch.
Chapter: *large_batch*. Source: Goyal et al. (2017); Krizhevsky (2014).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checks import check_count, check_list, check_number, check_positive
from ..errors import InvalidInput


class Schedule(ABC):
    """The rate as a function of the step; a subclass is made a frozen dataclass."""

    @abstractmethod
    def rate(self, step: int) -> float:
        """Give the rate of a step, counted from 0 over the whole run."""


def rate_at(lr: float | Schedule, step: int) -> float:
    """Give the rate of a step, counted from 0; a number is the same at every step.

    >>> rate_at(GradualWarmup(0.1, 4, 0.5), 1)
    0.2
    """
    check_rate("lr", lr)
    check_count("step", step, min=0)
    return lr.rate(step) if isinstance(lr, Schedule) else lr


@dataclass(frozen=True)
class GradualWarmup(Schedule):
    """Rise in a straight line from `start`; `steps` steps later `then` takes over."""

    start: float  #: rate of the first step
    steps: int  #: how many steps are below
    then: float | Schedule  #: counts its steps from the start of the run, too

    def __post_init__(self) -> None:
        check_positive("start", self.start, "the rate before it was scaled is usual")
        check_count("steps", self.steps)
        check_rate("then", self.then)

    def rate(self, step: int) -> float:
        """Give the rate of a step."""
        step = check_count("step", step, min=0)
        if step >= self.steps:
            return rate_at(self.then, step)
        rise = rate_at(self.then, self.steps) - self.start
        return self.start + rise * (step / self.steps)


@dataclass(frozen=True)
class ConstantWarmup(GradualWarmup):
    """Keep `start` for all `steps` steps; after them `then` takes over, in one jump."""

    def rate(self, step: int) -> float:
        """Give the rate of a step."""
        step = check_count("step", step, min=0)
        return self.start if step < self.steps else rate_at(self.then, step)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiply the rate by `factor` at each of the steps `at`."""

    lr: float  #: the rate before the first of them
    at: Sequence[int]  #: steps, in rising order
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_positive("lr", self.lr, "try 0.05")
        check_list("at", self.at, "steps, such as (300, 600, 800)")
        object.__setattr__(self, "at", tuple(check_count("at", s) for s in self.at))
        check_number("factor", self.factor, above=0, below=1, hint="try 0.1")
        if list(self.at) != sorted(set(self.at)):
            raise InvalidInput(
                f"expected steps in rising order as at, got {self.at!r:.80}; sort them"
            )

    def rate(self, step: int) -> float:
        """Give the rate of a step."""
        step = check_count("step", step, min=0)
        return self.lr * self.factor ** sum(step >= first for first in self.at)


def scale_linearly(lr: float, k: float) -> float:
    """Return k times the rate, the linear rule for SGD at a batch k times as large.

    It holds while k steps hardly change the gradient. Source: Krizhevsky (2014).
    """
    return check_positive("lr", lr) * check_positive("k", k)


def scale_by_root(lr: float, k: float) -> float:
    """Return sqrt(k) times the rate, Adam's rule at a batch k times as large.

    Below the noise scale, k times the batch makes Adam's step sqrt(k) times longer
    already. With SGD it keeps the variance of one step, not that of a run. Source:
    Krizhevsky (2014), Malladi et al. (2022).
    """
    return check_positive("lr", lr) * math.sqrt(check_positive("k", k))


def check_rate(name: str, lr: Any) -> float | Schedule:
    """Refuse what is neither a positive number nor a schedule."""
    if isinstance(lr, Schedule):
        return lr
    return check_positive(name, lr, "try 0.05, or a schedule such as StepDecay(...)")


def make_rate(lr: Any, warmup: Any = None) -> float | Schedule:
    """Give the rate that `train` is asked for; it rises for `warmup` steps, if given.

    It begins at lr / warmup. Raises `InvalidInput` for a warm-up beside a schedule.
    """
    lr = check_rate("lr", lr)
    if warmup is None:
        return lr
    warmup = check_count("warmup", warmup, hint="it counts steps")
    if isinstance(lr, Schedule):
        raise InvalidInput(
            f"expected a number as lr beside a warm-up of {warmup} steps, got "
            f"{lr!r:.80}; write the warm-up into it, with GradualWarmup(...)"
        )
    return GradualWarmup(lr / warmup, warmup, lr)
