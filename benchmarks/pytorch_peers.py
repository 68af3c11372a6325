"""PyTorch's own training steps, that ours are timed beside: DDP and `fully_shard`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from d2lmulti.backends.protocol import Tensor


def peer_step(
    forward: Callable[..., Any], params: Sequence[Tensor], X: Tensor, y: Tensor,
    lr: float, n: int,
) -> Callable[[], None]:  # fmt: skip
    """Make a step of PyTorch's own DDP and SGD on this rank's part of n examples."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
            self.weights = torch.nn.ParameterList(copies)

        def forward(self, X: Tensor) -> Tensor:
            return forward(list(self.weights), X)

    return _sgd_step(torch.nn.parallel.DistributedDataParallel(Net()), X, y, lr, n)


def sharded_step(
    params: Sequence[Tensor], X: Tensor, y: Tensor, lr: float, n: int, recompute: bool
) -> Callable[[], None]:
    """Make a step of `fully_shard` and SGD, each layer of a perceptron a unit.

    With `recompute` a layer keeps its input alone, and is computed again in the
    backward pass: PyTorch's activation checkpointing.
    """

    class Dense(torch.nn.Module):
        def __init__(self, W: Tensor, b: Tensor, last: bool) -> None:
            super().__init__()
            self.linear, self.last = torch.nn.Linear(*W.shape), last
            self.linear.load_state_dict({"weight": W.T.contiguous(), "bias": b})

        def compute(self, x: Tensor) -> Tensor:
            x = self.linear(x)
            return x if self.last else torch.relu(x)

        def forward(self, x: Tensor) -> Tensor:
            if recompute:
                return checkpoint(self.compute, x, use_reentrant=False)
            return self.compute(x)

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    pairs = [*zip(params[::2], params[1::2], strict=True)]
    layers = [Dense(W, b, i == len(pairs) - 1) for i, (W, b) in enumerate(pairs)]
    units = [fully_shard(layer, mesh=mesh) for layer in layers]
    net = fully_shard(torch.nn.Sequential(*units), mesh=mesh)
    return _sgd_step(net, X, y, lr, n)


def _sgd_step(
    net: torch.nn.Module, X: Tensor, y: Tensor, lr: float, n: int
) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr)
    scale = dist.get_world_size() / n  # both take the mean over the ranks

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(X), y, reduction="sum")
        (loss * scale).backward()
        optimizer.step()

    return step
