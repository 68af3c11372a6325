"""Models whose devices must talk in the middle of a step: all replicas at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ..backends.protocol import Backend, Tensor
from ..comm.cooperative import run_cooperatively
from ..comm.group import Group
from ..errors import framework_errors
from ..plans.requests import CollectiveRequest
from ..plans.rounds import Plan
from .model import Together

Talk = Generator[CollectiveRequest, Any, Tensor]


def together(
    forward: Callable[[Backend, Sequence[Tensor], Tensor], Talk], buffers: int = 0
) -> Callable[..., Together]:
    """Make `Model.together` of a forward pass that yields wherever the devices meet.

    The last `buffers` parameters are statistics without gradients.
    """
    name = forward.__name__

    def one(B: Backend, params: Sequence[Tensor], X: Tensor) -> Talk:
        count = len(params) - buffers
        leaves = B.accumulating(params[:count])  # the way back takes several passes
        with framework_errors(name, X):  # not what happens while it waits
            return (yield from forward(B, [*leaves, *params[count:]], X))

    def run(
        B: Backend,
        replicas: Sequence[Sequence[Tensor]],
        shards: Sequence[Tensor],
        group: Group,
        algorithm: str | Plan,
    ) -> Together:
        forwards = [one(B, *pair) for pair in zip(replicas, shards, strict=True)]
        logits, segments = run_cooperatively(B, forwards, group, algorithm)
        return logits, segments.backward

    return run
