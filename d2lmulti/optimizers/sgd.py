"""Optimizers whose arithmetic gives the same bits on every framework.

Every operation stands alone (`v*mu + g/n`, then `p - v*lr`): a fused multiply-add
rounds once instead of twice and differs in one element out of seven. The optimizer
never clears gradients; the training step does, where the reader can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..backends.protocol import Tensor, backend_of, element_count
from ..checks import check_lists, check_number, invalid
from ..errors import InvalidInput


class Optimizer(Protocol):
    """What a training step needs: a state for each replica, and a step.

    The state begins with `states_per_parameter` lists of one tensor a parameter, in
    its shape.
    """

    @property
    def states_per_parameter(self) -> int:
        """How many numbers the state keeps for each number of the parameters."""

    def init(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Make the optimizer's state for one replica, on the replica's device."""

    def step_(
        self, params: Sequence[Tensor], state: Sequence[Tensor], lr: float, n: int
    ) -> None:
        """Update one replica in place from gradients summed over n examples."""


@dataclass(frozen=True)
class SGD:
    """Minibatch stochastic gradient descent, with momentum if it is not zero.

    Velocity v and parameter p, from gradients g summed over n examples:
    v <- momentum * v + g / n, then p <- p - lr * v.
    """

    momentum: float = 0.0  #: from 0 up to below 1

    def __post_init__(self) -> None:
        check_number("momentum", self.momentum, min=0, below=1, hint="try 0.9")

    @property
    def states_per_parameter(self) -> int:
        """One velocity for each parameter, none without momentum."""
        return int(self.momentum > 0)

    def init(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Make the velocities (zeros like the parameters), none without momentum."""
        if self.momentum == 0:
            return []
        return [zeros_like(p.shape, p) for p in params]

    def step_(
        self, params: Sequence[Tensor], state: Sequence[Tensor], lr: float, n: int
    ) -> None:
        """Update the parameters of one replica (and its velocities) in place."""
        if self.momentum and len(state) != len(params):
            raise InvalidInput(
                f"expected one velocity for each of {len(params)} parameters, got "
                f"{len(state)}; make them with optimizer.init(params) and keep them"
            )
        for i, p in enumerate(params):
            B = backend_of(p)
            with B.pause():
                v = B.grad(p) / n
                if self.momentum:
                    v = state[i] * self.momentum + v
                    assign_(state[i], v)
                assign_(p, B.detach(p) - v * lr)


def check_optimizer(optimizer: Any) -> Optimizer:
    """Refuse what is not an `Optimizer` object; None is SGD without momentum."""
    if optimizer is None:
        return SGD()
    verbs = [getattr(optimizer, verb, None) for verb in ("init", "step_")]
    if isinstance(optimizer, type) or not all(map(callable, verbs)):
        raise invalid("SGD(), Adam() or the like as optimizer", optimizer)
    return optimizer


def check_states(states: Any, owners: int, per: str = "device") -> Any:
    """Return one state per device (or stage); those left out are empty."""
    if states is None:
        return [[]] * owners
    hint = "use [optimizer.init(params) for params in ...]"
    return check_lists("states", states, owners, per, min_length=0, hint=hint)


def zeros_like(shape: Sequence[int], like: Tensor) -> Tensor:
    """Make zeros of this shape, on the device and in the dtype of another tensor."""
    B = backend_of(like)
    return B.zeros(shape, B.dtype_of(like), B.device_of(like))


def assign_(x: Tensor, y: Tensor) -> None:
    """Overwrite a tensor in place."""
    backend_of(x).write_(x, 0, element_count(x), y)
