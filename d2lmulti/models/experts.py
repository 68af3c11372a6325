"""A mixture of experts: a router sends each token to one of many small MLPs.

On one device every expert has slots for all tokens that choose it. In expert
parallelism (`tensor_parallel.transformer.experts_part`) each rank holds some experts:
one all-to-all dispatches the tokens, and another returns the results.
Source: Lepikhin et al. (2020), Fedus et al. (2022). Chapter: *experts*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_count, check_positive


class Choice(NamedTuple):
    """The expert that each token (n,) takes."""

    expert: np.ndarray  #: (n,)
    gate: Tensor  #: (n, 1): the probability of the chosen expert


class Route(NamedTuple):
    """The slots of one rank's tokens: `capacity` adjacent slots for each expert.

    An empty slot refers to the token past the last, a dropped token to the slot past
    the last.
    """

    token_of: np.ndarray  #: (experts * capacity,): the token in every slot
    slot_of: np.ndarray  #: (tokens,): the slot of every token


def route_tokens(choice: np.ndarray, experts: int, capacity: int) -> Route:
    """Assign each token a slot of its expert, in the order of `choice` (tokens,)."""
    token_of = np.full(experts * capacity, len(choice))
    slot_of = np.full(len(choice), experts * capacity)
    for expert in range(experts):
        tokens = np.flatnonzero(choice == expert)[:capacity]
        slots = expert * capacity + np.arange(len(tokens))
        token_of[slots], slot_of[tokens] = tokens, slots
    return Route(token_of, slot_of)


def choose_experts(B: Backend, X: Tensor, router: Tensor) -> Choice:
    """Choose experts for X (n, width) by the router (width, experts)."""
    probabilities = B.softmax(X @ router)
    expert = B.numpy(B.argmax(probabilities)).astype(np.int64)
    chosen = np.eye(router.shape[1], dtype=B.dtype_of(X))[expert]
    gate = B.sum(probabilities * B.array(chosen, B.device_of(X)), 1, keepdims=True)
    return Choice(expert, gate)


def take_rows(B: Backend, x: Tensor, which: np.ndarray) -> Tensor:
    """Return rows of x (rows, width); one past the last is zero."""
    nothing = B.zeros((1, x.shape[1]), B.dtype_of(x), B.device_of(x))
    return B.embedding(B.array(which, B.device_of(x)), B.concat([x, nothing]))


def run_experts(
    B: Backend, W1: Tensor, W2: Tensor, slots: Tensor, ranks: int = 1
) -> Tensor:
    """Compute relu(x W1) W2 of each expert's own slots.

    W1 (experts, width, hidden), W2 (experts, hidden, width) of the local experts; slots
    (ranks * experts * capacity, width): the tokens that each rank has sent to each of
    them. The result has the same shape.
    """
    experts, width = int(W1.shape[0]), int(W1.shape[1])
    H = B.transpose(slots.reshape((ranks, experts, -1, width)), (1, 0, 2, 3))
    H = B.relu(H.reshape((experts, -1, width)) @ W1) @ W2
    H = B.transpose(H.reshape((experts, ranks, -1, width)), (1, 0, 2, 3))
    return H.reshape((-1, width))


def fullest(choice: Choice) -> int:
    """Return the largest number of tokens that chose one expert."""
    return int(np.bincount(choice.expert).max())


def experts_layer(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Add the outputs of the experts for layer_norm(X) to the stream X (n, t, width).

    params: gamma, beta, the router (width, experts), W1 (experts, width, hidden), W2
    (experts, hidden, width). No token is dropped.
    """
    gamma, beta, router, W1, W2 = params
    H = B.layer_norm(X, gamma, beta).reshape((-1, X.shape[-1]))
    choice = choose_experts(B, H, router)
    route = route_tokens(choice.expert, router.shape[1], fullest(choice))
    out = run_experts(B, W1, W2, take_rows(B, H, route.token_of))
    return X + (choice.gate * take_rows(B, out, route.slot_of)).reshape(X.shape)


def expert_capacity(tokens: int, experts: int, factor: float) -> int:
    """Return the slots per expert: `factor` times an even share, rounded up.

    >>> expert_capacity(100, 8, 1.25)
    16
    """
    tokens = check_count("tokens", tokens)
    experts = check_count("experts", experts)
    return math.ceil(check_positive("factor", factor) * tokens / experts)
