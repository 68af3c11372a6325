"""A user's own module and what each of two ranks does with it, for its tests.

Layer `frozen` collects no gradient, `unused` is in no forward pass, and `sometimes` is
used by rank 0 alone. The same backward pass runs under the framework's own wrapper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput
from d2lmulti.parallel.buckets import reduce_in_buckets
from d2lmulti.processes.process_group import started

NAMES = ("first", "frozen", "unused", "sometimes", "last")
SIZES = {"first": (5, 7), "frozen": (7, 7), "last": (7, 3)}


def make_module(name: str) -> Any:
    """Make the module in PyTorch or Paddle; its weights come from NumPy."""
    if name == "torch":
        from torch.nn import Linear, Module
    else:
        from paddle.nn import Layer as Module
        from paddle.nn import Linear

    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            for layer in NAMES:
                setattr(self, layer, Linear(*SIZES.get(layer, (7, 7))))

        def forward(self, x: Any, more: bool = False) -> Any:
            x = self.frozen(self.first(x))
            return self.last(self.sometimes(x) if more else x)

    net, rng = Net(), np.random.default_rng(0)
    for p in net.parameters():
        values = rng.normal(size=tuple(p.shape)).astype("float32")
        if name == "torch":
            import torch

            p.data.copy_(torch.from_numpy(values))
        else:
            p.set_value(values)
    for p in net.frozen.parameters():
        if name == "torch":
            p.requires_grad_(False)
        else:
            p.stop_gradient = True
    return net


def clear(name: str, net: Any) -> None:
    """Leave no gradients, as PyTorch's zero_grad does; Paddle has to be asked."""
    if name == "torch":
        net.zero_grad()
    else:
        net.clear_gradients(set_to_zero=False)


def used(net: Any) -> list[Any]:
    """The parameters that a forward pass with `sometimes` uses, and the frozen ones."""
    unused = {id(p) for p in net.unused.parameters()}
    return [p for p in net.parameters() if id(p) not in unused]


def gradients(net: Any) -> list[list[float] | None]:
    B = get_backend()
    return [
        None if p.grad is None else B.numpy(p.grad).ravel().tolist()
        for p in net.parameters()
    ]


def shard(rank: int) -> Any:
    """The examples of one rank: two have other values, and as many."""
    rng = np.random.default_rng(10 + rank)
    return get_backend().array(rng.normal(size=(4, 5)).astype("float32"))


def loss(net: Any, x: Any, more: bool) -> Any:
    y = net(x, more)
    return (y * y).mean()


def wrapped(name: str, net: Any) -> Any:
    """The framework's own wrapper, which averages gradients over the ranks."""
    if name == "torch":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(net, find_unused_parameters=True)
    import paddle

    return paddle.DataParallel(net, find_unused_parameters=True)


def beside_the_frameworks_own() -> dict[str, Any]:
    """Two steps of gradients, theirs and ours; called in each process."""
    B, rank = get_backend(), started().local_ranks[0]
    found: dict[str, Any] = {}
    for _ in range(2):
        theirs, ours = make_module(B.name), make_module(B.name)
        wrapper = wrapped(B.name, theirs)  # which the graph itself does not keep
        loss(wrapper, shard(rank), True).backward()
        clear(B.name, ours)
        with reduce_in_buckets([used(ours)], 200, op="mean") as buckets:
            loss(ours, shard(rank), True).backward()
        found.setdefault("theirs", []).append(gradients(theirs))
        found.setdefault("ours", []).append(gradients(ours))
        found["buckets"] = buckets
    for p in ours.parameters():  # ranks that differ, and nobody looks for it
        p.grad = None
    try:
        with reduce_in_buckets([list(ours.parameters())], 200, op="mean"):
            loss(ours, shard(rank), rank == 0).backward()
    except InvalidInput as error:
        found["refused"] = str(error)
    found["after"] = gradients(ours)[0]
    if B.name == "torch":
        from peers.cs336.steps import beside_one_device

        found["cs336"] = beside_one_device(rank)
    return found
