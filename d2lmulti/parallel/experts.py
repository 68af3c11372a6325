"""Expert parallelism: each rank holds some of the experts, and tokens travel to theirs.

A router sends every token to one of many small MLPs. Each rank has room for so many of
its tokens at every expert; who comes later is dropped, and goes on as it is. An
all-to-all brings the tokens to their experts, and another one the results home.
Source: Lepikhin et al. (2020), Fedus et al. (2022). Chapter: *experts*.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_count, check_positive
from ..errors import InvalidInput
from ..plans.requests import CollectiveRequest, Swap, Total


def expert_capacity(tokens: int, experts: int, factor: float) -> int:
    """Give the room of each expert: `factor` times an even share, rounded up.

    >>> expert_capacity(100, 8, 1.25)
    16
    """
    tokens = check_count("tokens", tokens)
    experts = check_count("experts", experts)
    return math.ceil(check_positive("factor", factor) * tokens / experts)


class Route(NamedTuple):
    """Where one rank's tokens go; `capacity` slots for each expert, one after another.

    An empty slot names the token past the last, a dropped token the slot past the last.
    """

    token_of: np.ndarray  #: (experts * capacity,): the token in every slot
    slot_of: np.ndarray  #: (tokens,): the slot of every token
    chosen: np.ndarray  #: (experts,): how many tokens wanted each expert

    @property
    def dropped(self) -> int:
        """Count the tokens for which there was no room."""
        return int((self.slot_of == len(self.token_of)).sum())


def route_tokens(choice: np.ndarray, experts: int, capacity: int) -> Route:
    """Give each token a slot of the expert it chose, first come, first served.

    choice (tokens,): the number of an expert for each token.
    """
    token_of = np.full(experts * capacity, len(choice))
    slot_of = np.full(len(choice), experts * capacity)
    for expert in range(experts):
        here = np.flatnonzero(choice == expert)[:capacity]
        slots = expert * capacity + np.arange(len(here))
        token_of[slots], slot_of[here] = here, slots
    return Route(token_of, slot_of, np.bincount(choice, minlength=experts))


def expert_layer(
    B: Backend, params: Sequence[Tensor], X: Tensor, capacity: int, ranks: int
) -> Generator[CollectiveRequest, Any, tuple[Tensor, Tensor, Route]]:
    """Add to X (tokens, width) what its experts make of it; for `run_cooperatively`.

    params: the router (width, experts), whole on every rank, and of this rank's
    experts W1 (experts / ranks, width, hidden) and W2 (experts / ranks, hidden, width).
    Gives (tokens, width), the rank's share of the loss that keeps experts equally busy,
    N sum_e f_e p_e with the shares f of all tokens that chose e and their mean
    probabilities p, and the route. Ranks may differ in tokens, not in capacity. The
    router's gradient is a share of a sum over the ranks, the experts' are complete.
    Raises `InvalidInput` for experts that are not shared out evenly.
    """
    router, W1, W2 = params
    experts, own, width = router.shape[1], W1.shape[0], X.shape[1]
    capacity = check_count("capacity", capacity)
    if own * ranks != experts:
        raise InvalidInput(
            f"expected {experts} experts shared out evenly over {ranks} ranks, got "
            f"{own} on one; use a number of experts that {ranks} divides"
        )
    probabilities = B.softmax(X @ router)
    choice = B.numpy(B.argmax(probabilities)).astype(np.int64)
    route = route_tokens(choice, experts, capacity)
    chosen = np.eye(experts, dtype=B.dtype_of(X))[choice]
    gate = B.sum(probabilities * B.array(chosen, B.device_of(X)), 1, keepdims=True)

    keep = X * 1, gate, probabilities  # X may be a leaf
    here, X, gate, probabilities = yield Swap(_rows(B, X, route.token_of), keep=keep)
    H = B.transpose(here.reshape((ranks, own, capacity, width)), (1, 0, 2, 3))
    H = B.relu(H.reshape((own, ranks * capacity, width)) @ W1) @ W2
    H = B.transpose(H.reshape((own, ranks, capacity, width)), (1, 0, 2, 3))
    (home,) = yield Swap(H.reshape((experts * capacity, width)))
    Y = X + gate * _rows(B, home, route.slot_of)

    wanted = B.array(route.chosen.astype(B.dtype_of(X)), B.device_of(X))
    wanted, Y = yield Total(wanted, keep=(Y,))
    tokens = float(B.numpy(wanted).sum())
    balance = (probabilities * wanted).sum() * (experts / tokens**2)
    return Y, balance, route


def _rows(B: Backend, x: Tensor, which: np.ndarray) -> Tensor:
    """Take rows of x (rows, width); one past the last gives zeros."""
    nothing = B.zeros((1, x.shape[1]), B.dtype_of(x), B.device_of(x))
    return B.embedding(B.array(which, B.device_of(x)), B.concat([x, nothing]))
