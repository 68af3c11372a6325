"""Paddle's own training step, that ours are timed beside: DataParallel and SGD."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import paddle
import paddle.distributed as dist

from d2lmulti.backends import paddle as B
from d2lmulti.backends.protocol import Tensor


def peer_step(
    forward: Callable[..., Any],
    params: Sequence[Tensor],
    X: Tensor,
    y: Tensor,
    lr: float,
    n: int,
) -> Callable[[], None]:
    """Make a step of Paddle's own DataParallel and SGD on this rank's part."""

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            assign = paddle.nn.initializer.Assign
            copies = [
                paddle.create_parameter(
                    p.shape, B.dtype_of(p), default_initializer=assign(B.numpy(p))
                )
                for p in params
            ]
            self.weights = paddle.nn.ParameterList(copies)

        def forward(self, X: Tensor) -> Tensor:
            return forward(list(self.weights), X)

    with contextlib.redirect_stderr(io.StringIO()):
        net = paddle.DataParallel(Net())
    optimizer = paddle.optimizer.SGD(lr, parameters=net.parameters())
    scale = dist.get_world_size() / n  # DataParallel takes the mean over the ranks

    def step() -> None:
        optimizer.clear_grad()
        (B.cross_entropy(net(X), y).sum() * scale).backward()
        optimizer.step()

    return step
