"""Optimizers whose arithmetic gives the same bits on every framework.

Operations are not fused (`v*mu + g/n`, then `p - v*lr`): a fused multiply-add rounds
once instead of twice and differs in one element out of seven. The optimizer does not
clear gradients; the training step does, where the reader can see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .backends import backend_of, element_count
from .backends.protocol import Tensor
from .checks import check_choice, check_lists, check_number, check_positive, shown
from .errors import InvalidInput


class Optimizer(Protocol):
    """The interface that a training step needs: a state for each replica, and a step.

    The state begins with `states_per_parameter` lists of one tensor per parameter, in
    its shape.
    """

    @property
    def states_per_parameter(self) -> int:
        """Return the elements of the state for each element of the parameters."""

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
        """Return 1, for the velocity, or 0 without momentum."""
        return int(self.momentum > 0)

    def init(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Make the velocities (zeros like the parameters), none without momentum."""
        return [zeros_like(p.shape, p) for p in params] if self.momentum else []

    def step_(
        self, params: Sequence[Tensor], state: Sequence[Tensor], lr: float, n: int
    ) -> None:
        """Update the parameters of one replica (and its velocities) in place."""
        if self.momentum:
            _check_state(state, len(params))
        for i, p in enumerate(params):
            B = backend_of(p)
            with B.pause():
                v = B.grad(p) / n
                if self.momentum:
                    v = state[i] * self.momentum + v
                    assign_(state[i], v)
                assign_(p, B.detach(p) - v * lr)


@dataclass(frozen=True)
class Adam:
    """Adam: steps of about the size of lr, for gradients of any size.

    Moving averages m of the gradient g / n and v of its square start at zero; c1 and
    c2, the same averages of ones, correct their bias. p moves by
    -lr * (m / c1) / (sqrt(v / c2) + eps). Source: Kingma, Ba (2015).
    """

    beta1: float = 0.9  #: decay of the gradient's average
    beta2: float = 0.999  #: decay of the average of its square
    eps: float = 1e-8  #: added to the root

    def __post_init__(self) -> None:
        check_number("beta1", self.beta1, min=0, below=1, hint="try 0.9")
        check_number("beta2", self.beta2, min=0, below=1, hint="try 0.999")
        check_positive("eps", self.eps, "try 1e-8")

    @property
    def states_per_parameter(self) -> int:
        """Return 2, for m and v."""
        return 2

    def init(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Make m of every parameter, then v of every parameter, then c1 and c2."""
        if not params:
            return []
        averages = [zeros_like(p.shape, p) for _ in ("m", "v") for p in params]
        return [*averages, zeros_like((1,), params[0]), zeros_like((1,), params[0])]

    def step_(
        self, params: Sequence[Tensor], state: Sequence[Tensor], lr: float, n: int
    ) -> None:
        """Update the parameters of one replica and its moving averages in place."""
        k = len(params)
        _check_state(state, 2 * k + 2 if k else 0)
        for c, beta in zip(state[2 * k :], (self.beta1, self.beta2), strict=False):
            _average_(c, 1, beta)
        for p, m, v in zip(params, state[:k], state[k : 2 * k], strict=True):
            B = backend_of(p)
            with B.pause():
                g = B.grad(p) / n
                _average_(m, g, self.beta1)
                _average_(v, g * g, self.beta2)
                c1, c2 = state[-2:]
                size = B.sqrt(v / c2) + self.eps
                assign_(p, self._decayed(p, lr) - (m / c1) / size * lr)

    def _decayed(self, p: Tensor, lr: float) -> Tensor:
        return backend_of(p).detach(p)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay: weights shrink by lr * weight_decay.

    With the penalty in the gradient instead, Adam would divide it by the size of the
    gradient, so weights with large gradients would decay less. Source: Loshchilov,
    Hutter (2019).
    """

    weight_decay: float = 0.01  #: fraction per step, times lr

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, min=0, hint="try 0.01")

    def _decayed(self, p: Tensor, lr: float) -> Tensor:
        p = backend_of(p).detach(p)
        return p - p * self.weight_decay * lr


OPTIMIZERS = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make_optimizer(
    optimizer: str | Optimizer, momentum: float | None = None
) -> Optimizer:
    """Return the optimizer of that name, `sgd` with momentum 0.9, or the one given.

    Raises `InvalidInput` for an unknown name, and for a momentum that is not SGD's.
    """
    if isinstance(optimizer, str):
        check_choice("optimizer", optimizer, OPTIMIZERS)
    if optimizer == "sgd":
        return SGD(0.9 if momentum is None else momentum)
    if momentum is not None:
        raise InvalidInput(
            f"expected a momentum with the optimizer sgd only, got {momentum!r} with "
            f"{shown(optimizer)}; leave it out, or pass SGD(momentum)"
        )
    return OPTIMIZERS[optimizer]() if isinstance(optimizer, str) else optimizer


def check_states(states: Any, owners: int, per: str = "device") -> Any:
    """Return one state per device (or stage), by default empty ones."""
    if states is None:
        return [[]] * owners
    hint = "use [optimizer.init(params) for params in ...]"
    return check_lists("states", states, owners, per, min_length=0, hint=hint)


def _check_state(state: Sequence[Tensor], expected: int) -> None:
    if len(state) != expected:
        raise InvalidInput(
            f"expected a state of {expected} tensors, got {len(state)}; make it with "
            "optimizer.init(params) and keep it"
        )


def zeros_like(shape: Sequence[int], like: Tensor) -> Tensor:
    """Make zeros of this shape, on the device and in the dtype of another tensor."""
    B = backend_of(like)
    return B.zeros(shape, B.dtype_of(like), B.device_of(like))


def assign_(x: Tensor, y: Tensor) -> None:
    """Overwrite a tensor in place."""
    backend_of(x).write_(x, 0, element_count(x), y)


def _average_(average: Tensor, value: Any, beta: float) -> None:
    # beta * average + (1 - beta) * value, without 1 - beta, which MXNet would round.
    with backend_of(average).pause():
        assign_(average, (average - value) * beta + value)
