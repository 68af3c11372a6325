"""Adam: every parameter has a step size of its own, from two moving averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..backends.protocol import Tensor, backend_of
from ..checks import check_number, check_positive
from ..errors import InvalidInput
from .sgd import assign_, zeros_like


@dataclass(frozen=True)
class Adam:
    """Adam: steps of the size of lr, whatever the size of the gradients.

    Moving averages m of the gradient g / n and v of its square start at zero; c1 and
    c2, the same averages of ones, say by how much they are too small. p moves by
    -lr * (m / c1) / (sqrt(v / c2) + eps). Source: Kingma, Ba (2015).
    """

    beta1: float = 0.9  #: decay of the gradient's average
    beta2: float = 0.999  #: decay of its square's
    eps: float = 1e-8  #: added to the root

    def __post_init__(self) -> None:
        check_number("beta1", self.beta1, min=0, below=1, hint="try 0.9")
        check_number("beta2", self.beta2, min=0, below=1, hint="try 0.999")
        check_positive("eps", self.eps, "try 1e-8")

    @property
    def states_per_parameter(self) -> int:
        """m and v."""
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
        if len(state) != (2 * k + 2 if k else 0):
            raise InvalidInput(
                f"expected two averages for each of {k} parameters and two more, got "
                f"{len(state)}; make them with optimizer.init(params) and keep them"
            )
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
    """Adam whose weights also shrink, each by the same fraction, lr * weight_decay.

    With the penalty in the gradient instead, Adam would divide it by the gradient's own
    size, and large gradients would hide it. Source: Loshchilov, Hutter (2019).
    """

    weight_decay: float = 0.01  #: of each step times lr

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_decay", self.weight_decay, min=0, hint="try 0.01")

    def _decayed(self, p: Tensor, lr: float) -> Tensor:
        p = backend_of(p).detach(p)
        return p - p * self.weight_decay * lr


def _average_(average: Tensor, value: Any, beta: float) -> None:
    # beta * average + (1 - beta) * value, with no number that MXNet would read wrongly.
    with backend_of(average).pause():
        assign_(average, (average - value) * beta + value)
