"""Expert parallelism: each rank holds some experts, and tokens are sent to theirs.

A router sends every token to one of many small MLPs. An all-to-all takes the tokens to
their experts, and another one returns the results. With a fixed capacity, tokens that
find no free slot are dropped; without one, every expert has slots for all its tokens.
Source: Lepikhin et al. (2020), Fedus et al. (2022). Chapter: *experts*.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_count, check_positive
from ..comm.cooperative import AllReduceNoGrad, AllToAll, CollectiveRequest, Max
from ..errors import InvalidInput
from ..models.experts import (
    Route,
    choose_experts,
    fullest,
    route_tokens,
    run_experts,
    take_rows,
)


def expert_capacity(tokens: int, experts: int, factor: float) -> int:
    """Return the number of slots of each expert: `factor` times an even share.

    It is rounded up.

    >>> expert_capacity(100, 8, 1.25)
    16
    """
    tokens = check_count("tokens", tokens)
    experts = check_count("experts", experts)
    return math.ceil(check_positive("factor", factor) * tokens / experts)


def expert_layer(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    capacity: int | None,
    ranks: int,
) -> Generator[CollectiveRequest, Any, tuple[Tensor, Tensor, Route]]:
    """Add the outputs of the experts to X (tokens, width); for `run_cooperatively`.

    params: the router (width, experts), replicated, and of this rank's experts W1
    (experts / ranks, width, hidden) and W2 (experts / ranks, hidden, width).
    Returns (tokens, width), the rank's part of the load-balancing loss N sum_e f_e p_e,
    with the fractions f of all tokens that chose e and their mean probabilities p, and
    the route. Ranks may differ in tokens, not in capacity. With capacity None no token
    is dropped: every expert has as many slots for each rank as the largest load of one
    expert on one rank, which takes one more exchange. The router's gradient is a
    partial sum over the ranks, the experts' are complete. Raises `InvalidInput` unless
    the experts are distributed evenly.
    """
    router, W1, W2 = params
    experts, own = router.shape[1], W1.shape[0]
    if capacity is not None:
        capacity = check_count("capacity", capacity)
    if own * ranks != experts:
        raise InvalidInput(
            f"expected {experts} experts distributed evenly over {ranks} ranks, got "
            f"{own} on one; use a number of experts that {ranks} divides"
        )
    choice = choose_experts(B, X, router)
    keep = X * 1, choice.gate, choice.probabilities  # X may be a leaf
    if capacity is None:
        load = B.array(np.array([fullest(choice)], B.dtype_of(X)), B.device_of(X))
        load, *keep = yield Max(load, keep=keep)
        capacity = int(B.numpy(load)[0])
    route = route_tokens(choice.expert, experts, capacity)

    slots = take_rows(B, keep[0], route.token_of)
    received, X, gate, probabilities = yield AllToAll(slots, keep=tuple(keep))
    (returned,) = yield AllToAll(run_experts(B, W1, W2, received, ranks))
    Y = X + gate * take_rows(B, returned, route.slot_of)

    load = B.array(route.chosen.astype(B.dtype_of(X)), B.device_of(X))
    load, Y = yield AllReduceNoGrad(load, keep=(Y,))
    tokens = float(B.numpy(load).sum())
    balance = (probabilities * load).sum() * (experts / tokens**2)
    return Y, balance, route
