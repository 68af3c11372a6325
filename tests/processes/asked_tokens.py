"""What each process is asked for about attention, for `test_engines`."""

from __future__ import annotations

from typing import Any

import numpy as np

from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.group import Group, local_group
from d2lmulti.parallel.sequence import ORDERS, ring_attention, token_positions


def attention_over_ranks(B: Backend, group: Group, n: int) -> dict[str, Any]:
    """Compare attention with that of one process."""
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
        *parts, dOs = [[B.array(x[at[rank]]) for rank in ranks] for x in values]
        attended = ring_attention(*parts, at, group=group)
        grads = attended.backward(dOs)
        for name, xs in zip("OQKV", (attended.outputs, *grads), strict=True):
            found[f"{name} of ring attention, {order}"] = xs
    return {
        f"{name} on rank {rank}": B.numpy(x).tobytes()
        for name, xs in found.items()
        for rank, x in zip(ranks, xs, strict=True)
    }
