"""Optimizers whose arithmetic gives the same bits on every framework.

Every operation stands alone (`v*mu + g/n`, then `p - v*lr`): a fused multiply-add
rounds once instead of twice and differs in one element out of seven. The optimizer
never clears gradients; the training step does, where the reader can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .backends import backend_of
from .backends.protocol import Tensor
from .backends.sizes import element_count
from .errors import InvalidInput


class Optimizer(Protocol):
    """What a training step needs: a state for each replica, and a step."""

    def start(self, params: Sequence[Tensor]) -> list[Tensor]:
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

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise InvalidInput(
                f"expected a momentum of at least 0 and below 1, got {self.momentum!r}"
            )

    def start(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Make the velocities (zeros like the parameters), none without momentum."""
        if self.momentum == 0:
            return []
        velocities = []
        for p in params:
            B = backend_of(p)
            velocities.append(B.zeros(p.shape, B.dtype_of(p), B.device_of(p)))
        return velocities

    def step_(
        self, params: Sequence[Tensor], state: Sequence[Tensor], lr: float, n: int
    ) -> None:
        """Update the parameters of one replica (and its velocities) in place."""
        if self.momentum and len(state) != len(params):
            raise InvalidInput(
                f"expected one velocity for each of {len(params)} parameters, got "
                f"{len(state)}; make them with optimizer.start(params) and keep them"
            )
        for i, p in enumerate(params):
            B = backend_of(p)
            with B.pause():
                v = B.grad(p) / n
                if self.momentum:
                    v = state[i] * self.momentum + v
                    _assign_(state[i], v)
                _assign_(p, B.detach(p) - v * lr)


def _assign_(x: Tensor, y: Tensor) -> None:
    backend_of(x).write_(x, 0, element_count(x), y)
