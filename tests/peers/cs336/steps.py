"""Training through the adapters for CS336's tests, beside one device, in two processes.

Called in each process; what comes back is how far the weights are from one device's.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from peers.cs336 import adapters
from torch import nn

RANKS, BATCH, STEPS = 2, 6, 3


class Linear(nn.Linear):
    """One without bias, that computes in the dtype its weight comes in."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__(size, out, bias=False)

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight)


class Net(nn.Module):
    """Sizes that two ranks do not divide, a frozen layer and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.first = Linear(3, 3)
        self.frozen = Linear(3, 3).requires_grad_(False)
        self.last = Linear(3, 5)

    def forward(self, x: Any) -> Any:
        x = self.first(self.norm(self.table(x).double()))
        return self.last(self.first(torch.relu(self.frozen(x))))


def train(net: Any, optimizer: Any, rows: slice, after: Any = None) -> None:
    """Take a few steps on these rows of each batch, the loss their mean."""
    torch.manual_seed(1)
    for _ in range(STEPS):
        x, y = torch.randint(0, 5, (2, BATCH))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        if after is not None:
            after(net, optimizer)
        optimizer.step()


def beside_one_device(rank: int) -> dict[str, Any]:
    """Train with each adapter; tell the largest difference, and what a rank holds."""
    torch.set_default_dtype(torch.float64)
    mine, every = slice(rank, None, RANKS), slice(None)
    torch.manual_seed(0)
    start = Net()
    torch.manual_seed(rank)
    others = Net()  # on rank 1 not the start: the adapters take rank 0's
    if rank == 0:
        others.load_state_dict(start.state_dict())
    SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
    alone, alone_adam = deepcopy(start), deepcopy(start)
    train(alone, SGD(alone.parameters(), 0.1), every)
    train(alone_adam, AdamW(alone_adam.parameters(), 0.1), every)
    found: dict[str, Any] = {}

    def compare(name: str, weights: Any, reference: Any = alone) -> None:
        pairs = zip(weights, reference.parameters(), strict=True)
        found[name] = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)

    for megabytes in (1e-6, 1e-4, 1):
        net = adapters.get_ddp_bucketed(deepcopy(others), megabytes)
        after = adapters.ddp_bucketed_on_after_backward
        train(net, SGD(net.parameters(), 0.1), mine, after)
        compare(f"buckets of {megabytes} MB", net.module.parameters())

    net = deepcopy(start)  # the same batch on both ranks: their gradients are equal
    optimizer = adapters.get_sharded_optimizer(net.parameters(), AdamW, lr=0.1)
    train(net, optimizer, every)
    compare("sharded optimizer", net.parameters(), alone_adam)
    kept = [s["exp_avg"].numel() for o, _ in optimizer.mine for s in o.state.values()]
    found["numbers of the state"] = sum(kept)

    net = adapters.get_fsdp(deepcopy(others))
    after = adapters.fsdp_on_after_backward
    train(net, SGD(net.parameters(), 0.1), mine, after)
    whole = adapters.fsdp_gather_full_params(net)
    compare("FSDP", [whole[name] for name, _ in alone.named_parameters()])
    found["shards"] = [net.module.get_parameter(n).numel() for n in net.shapes]
    net = adapters.get_fsdp(deepcopy(others), torch.float32)
    train(net, SGD(net.parameters(), 0.1), mine, after)
    whole = adapters.fsdp_gather_full_params(net)
    compare("FSDP, float32", [whole[name] for name, _ in alone.named_parameters()])
    torch.set_default_dtype(torch.float32)
    return found
