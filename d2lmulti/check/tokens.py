"""Graders for work that is split by tokens: attention over a ring, and experts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..plans.rounds import even_bounds
from .report import Report, called, compare, grade, host, listed, places, unchanged


def ring_attention(
    f: Callable[..., Any], causal: bool = True, backend: str | None = None
) -> Report:
    """Grade `f(Qs, Ks, Vs)`, attention over a sequence that is cut over devices.

    One tensor (tokens, d) per device each, in the order of the sequence. It returns the
    devices' outputs: softmax(Q K^T / sqrt(d)) V, where with `causal` a query sees the
    keys up to its own position.
    """
    B = get_backend(backend)
    cases = [
        (1, 2, 2),
        (2, 1, 2),
        (2, 3, 2),
        (3, 2, 2),
        (4, 4, 2),
        (5, 2, 2),
        (3, 2, 50),
    ]
    covers = "1 to 5 devices, small and large scores, "
    covers += "causal" if causal else "every token sees all"
    where, words = "Long Sequences: Context Parallelism", "{:device}, {:token} on each"
    run = partial(_attend, f, B, causal)
    return grade("ring_attention", covers, where, run, words, cases)


def _attend(
    f: Callable[..., Any], B: Backend, causal: bool, k: int, n: int, size: float
) -> None:
    rng, d = np.random.default_rng(k), 2 + k
    Q, K, V = (size * rng.normal(size=(k * n, d)) for _ in range(3))
    cuts = [slice(r * n, (r + 1) * n) for r in range(k)]
    local = places(B, k)

    def cut(x: np.ndarray) -> list[Any]:
        return [B.array(x[c], device) for c, device in zip(cuts, local, strict=True)]

    inputs = [cut(Q), cut(K), cut(V)]
    answer = listed(called(f, *map(list, inputs)), k, "outputs")
    unchanged(B, sum(inputs, []), [x[c] for x in (Q, K, V) for c in cuts])
    after = np.arange(k * n)[None, :] > np.arange(k * n)[:, None]

    def scores(scale: float, mask: bool) -> np.ndarray:
        found = Q @ K.T * scale
        return np.where(after & mask, -np.inf, found)

    def attend(s: np.ndarray) -> np.ndarray:
        weights = np.exp(s - s.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ V

    def by_block(s: np.ndarray) -> np.ndarray:
        total = np.zeros_like(Q)
        for c in cuts:
            seen = np.isfinite(s[:, c]).any(axis=1)
            block = np.full_like(s, -np.inf)
            block[:, c] = s[:, c]
            total[seen] += attend(block[seen])
        return total

    def unscaled(s: np.ndarray) -> np.ndarray:
        mixed = np.zeros_like(Q)
        for r, c in enumerate(cuts):
            top, total = np.full((n, 1), -np.inf), np.zeros((n, 1))
            for step in range(k):
                block = cuts[r - step]
                top = np.maximum(top, s[c, block].max(axis=1, keepdims=True))
                weights = np.exp(s[c, block] - top)
                total = total + weights.sum(axis=1, keepdims=True)
                mixed[c] += weights @ V[block]
            mixed[c] /= total
        return mixed

    own = np.full((k * n, k * n), -np.inf)
    for c in cuts:
        own[c, c] = scores(d**-0.5, causal)[c, c]
    right = scores(d**-0.5, causal)
    local_mask = np.tile(np.triu(np.ones((n, n), bool), 1), (k, k))
    mistakes = [
        ("Each device attends to its own keys only: K and V were not passed on.",
         attend(own)),
        ("Blocks are normalized one by one: the running maximum and sum are missing.",
         by_block(right)),
        ("Earlier blocks are not scaled down when the running maximum grows.",
         unscaled(right)),
        ("There is no causal mask.", attend(scores(d**-0.5, False))),
        ("The mask uses positions within a device instead of in the sequence.",
         attend(np.where(local_mask, -np.inf, Q @ K.T * d**-0.5))),
        ("The scores are not divided by sqrt(d).", attend(scores(1.0, causal))),
        ("There is a causal mask, where every token should see all.",
         attend(scores(d**-0.5, True))),
    ]  # fmt: skip
    whole = attend(right)
    compare(
        [host(x, B) for x in answer],
        [whole[c] for c in cuts],
        [(words, [wrong[c] for c in cuts]) for words, wrong in mistakes],
    )


def experts(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(Xs, router, W1, W2, capacity)`, a layer of experts over devices.

    Xs: one tensor (tokens, d) per device; router (d, E), W1 (E, d, h), W2 (E, h, d),
    all three on the CPU. Each device computes E / devices of the experts, in order. A
    token goes to its most probable expert e under softmax(x router), with the
    probability p, and its output is x + p relu(x W1[e]) W2[e]. On each device an expert
    has `capacity` slots, which the first tokens get; for the others the output is x. It
    returns the devices' outputs.
    """
    B = get_backend(backend)
    cases = [
        (1, 2, 3, 3, 1), (1, 2, 4, 1, 1), (2, 2, 4, 4, 1), (2, 2, 6, 1, 1),
        (2, 4, 9, 2, 1), (3, 6, 11, 1, 1), (4, 8, 30, 2, 1), (2, 4, 9, 2, 1000),
    ]  # fmt: skip
    covers = "1 to 4 devices, dropped tokens, uneven shards, large scores"
    where = "Mixture of Experts and Expert Parallelism"
    words = "{:device}, {} experts, {} tokens, capacity {}"
    return grade("experts", covers, where, partial(_route, f, B), words, cases)


def _route(
    f: Callable[..., Any],
    B: Backend,
    k: int,
    E: int,
    tokens: int,
    capacity: int,
    size: float,
) -> None:
    rng, d, h = np.random.default_rng(tokens), 3, 4
    X, router = rng.normal(size=(tokens, d)), size * rng.normal(size=(d, E))
    W1, W2 = rng.normal(size=(E, d, h)), rng.normal(size=(E, h, d))
    cuts = [slice(*bounds) for bounds in even_bounds(tokens, k)]
    Xs = [B.array(X[c], at) for c, at in zip(cuts, places(B, k), strict=True)]
    inputs = [*Xs, *(B.array(w) for w in (router, W1, W2))]
    answer = listed(called(f, [*Xs], *inputs[k:], capacity), k, "outputs")
    unchanged(B, inputs, [*(X[c] for c in cuts), router, W1, W2])
    scores = X @ router
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = weights / weights.sum(axis=1, keepdims=True)
    choice, gate = p.argmax(axis=1), p.max(axis=1)[:, None]
    device = np.repeat(np.arange(k), [c.stop - c.start for c in cuts])

    def through(expert: np.ndarray, relu: bool = True) -> np.ndarray:
        hidden = np.einsum("td,tdh->th", X, W1[expert])
        hidden = np.maximum(hidden, 0) if relu else hidden
        return np.einsum("th,thd->td", hidden, W2[expert])

    def kept(order: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Return which tokens find a slot if they come in this order."""
        used, found = Counter[tuple[int, int]](), np.zeros((tokens, 1), bool)
        for t in order:
            place = int(group[t]), int(choice[t])
            found[t] = used[place] < capacity
            used[place] += 1
        return found

    first = np.arange(tokens)
    has, whole = kept(first, device), through(choice)
    own = device * (E // k) + choice % (E // k)
    mistakes = [
        ("The gate is missing: the router learns through its probability.",
         X + has * whole),
        ("The output of an expert is not added to its input.", has * gate * whole),
        ("Dropped tokens are zero: without a slot, the output is the input.",
         has * (X + gate * whole)),
        ("No token is dropped: the capacity is not kept.", X + gate * whole),
        ("The slots are those of all devices together, not of each.",
         X + kept(first, 0 * device) * gate * whole),
        ("The last tokens get the slots, and not the first.",
         X + kept(first[::-1], device) * gate * whole),
        ("Each device used its own experts: no token was sent to another device.",
         X + has * gate * through(own)),
        ("The ReLU is missing.", X + has * gate * through(choice, False)),
    ]  # fmt: skip
    right = X + has * gate * whole
    compare(
        [host(x, B) for x in answer],
        [right[c] for c in cuts],
        [(words, [wrong[c] for c in cuts]) for words, wrong in mistakes],
    )
