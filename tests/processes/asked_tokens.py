"""What each process is asked for about attention and experts, for `test_engines`."""

from __future__ import annotations

from typing import Any

import numpy as np

from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.cooperative import run_cooperatively
from d2lmulti.comm.group import Group, local_group
from d2lmulti.models.experts import expert_layer
from d2lmulti.parallel.sequence import (
    ORDERS,
    ring_attention,
    token_positions,
    ulysses_attention,
)


def tokens_and_experts(B: Backend, group: Group, n: int) -> dict[str, Any]:
    """Compare attention and experts with those of one process."""
    alone, mine = computed(B, local_group(n), n), computed(B, group, n)
    return {
        "differ": [name for name, bits in mine.items() if alone[name] != bits],
        "count": len(mine),
    }


def computed(B: Backend, group: Group, n: int) -> dict[str, bytes]:
    """Give outputs and gradients of each local rank."""
    ranks, found = group.local_ranks, {}
    values = np.random.default_rng(5).normal(size=(4, 13, 4, 3))
    for order in ORDERS:
        at = token_positions(13, n, order)
        for attend in (ring_attention, ulysses_attention):
            *parts, dOs = [[B.array(x[at[rank]]) for rank in ranks] for x in values]
            attended = attend(*parts, at, group=group)
            grads = attended.backward(dOs)
            for name, xs in zip("OQKV", (attended.outputs, *grads), strict=True):
                found[f"{name} of {attend.__name__}, {order}"] = xs
    inputs = [expert_inputs(B, rank, n) for rank in ranks]
    with B.record():
        losses, segments = run_cooperatively(
            B, [expert_loss(B, n, *mine) for mine in inputs], group
        )
    segments.backward(losses)
    found["loss"] = [B.detach(loss) for loss in losses]
    for name, leaves in zip(
        ("X", "router", "W1", "W2"), zip(*inputs, strict=True), strict=True
    ):
        found[f"gradient of {name}"] = [B.grad(x) for x in leaves]
    return {
        f"{name} on rank {rank}": B.numpy(x).tobytes()
        for name, xs in found.items()
        for rank, x in zip(ranks, xs, strict=True)
    }


def expert_inputs(B: Backend, rank: int, n: int) -> list[Any]:
    """Draw uneven tokens, the router of all and two experts of one rank."""
    rng = np.random.default_rng(rank)
    values = [
        rng.normal(size=(7 + rank, 5)),
        np.random.default_rng(99).normal(size=(5, 2 * n)),
        rng.normal(size=(2, 5, 6)),
        rng.normal(size=(2, 6, 5)),
    ]
    leaves = [B.array(value) for value in values]
    for leaf in leaves:
        B.attach_grad(leaf)
    return leaves


def expert_loss(B: Backend, n: int, X: Any, *params: Any) -> Any:
    Y, balance, _ = yield from expert_layer(B, params, X, 3, n)
    return (Y * Y).sum() + balance
