"""Graders for splitting the model: tensors, pipelines, shards, and sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backends.protocol import Backend
from ..errors import PlanError
from ..plans.pipeline import (
    Backward,
    BackwardWeight,
    Forward,
    simulate,
    stage_ranks,
    verify_schedule,
)
from ..plans.rounds import even_bounds
from .report import Case, Report, Wrong, called, compare, grade, host, places, use


def tensor_pair(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(X, W1, W2, devices)`, the pair of layers relu(X W1) W2 on devices.

    X (n, d), W1 (d, h), W2 (h, c). It returns the output (n, c) for every device; W1 is
    to be cut by columns and W2 by rows, evenly.
    """
    B = use(backend)
    cases = (
        Case(f"{k} devices, {h} hidden features", partial(_pair, f, B, k, h))
        for k, h in [(1, 2), (2, 2), (2, 6), (3, 6), (4, 8)]
    )
    covers = "1 to 4 devices, all outputs"
    return grade("tensor_pair", covers, "Tensor Parallelism", cases)


def _pair(f: Callable[..., Any], B: Backend, k: int, h: int) -> None:
    rng = np.random.default_rng(h)
    X, W1, W2 = (rng.normal(size=s) for s in ((3, 5), (5, h), (h, 4)))
    answer = called(f, *(B.array(x) for x in (X, W1, W2)), places(B, k))
    if answer is None:
        raise Wrong(f"Expected a list of {k} outputs, got None.")
    right = np.maximum(X @ W1, 0) @ W2
    cuts = [slice(*bounds) for bounds in even_bounds(h, k)]
    partial_sums = [np.maximum(X @ W1[:, c], 0) @ W2[c] for c in cuts]
    rows = [slice(*bounds) for bounds in even_bounds(5, k)]
    summed_late = sum(np.maximum(X[:, r] @ W1[r], 0) for r in rows) @ W2
    mistakes = [
        ("These are partial sums: the all-reduce at the end is missing.", partial_sums),
        (
            "Only device 0 has the sum: every device needs the output.",
            [right, *partial_sums[1:]],
        ),
        ("The ReLU is missing.", [X @ W1 @ W2] * k),
        ("The outputs are averaged, and not summed.", [right / k] * k),
        (
            "ReLU was applied to partial sums: the first layer is cut by rows, and "
            "relu(a + b) is not relu(a) + relu(b).",
            [summed_late] * k,
        ),
    ]
    compare([host(x, B) for x in answer], [right] * k, mistakes)


def schedule(
    f: Callable[..., Any], max_stored: Callable[[int, int, int], int] | None = None
) -> Report:
    """Grade `f(stages, micro_batches)`, which returns each device's instructions.

    Every computation must happen once, in an order without deadlock, with transfers.
    `max_stored(stages, micro_batches, device)` bounds the micro-batches whose
    activations a device stores at once, such as `lambda p, m, d: min(p - d, m)` for
    1F1B.
    """
    cases = (
        Case(f"{p} stages, {m} micro-batches", partial(_lists, f, max_stored, p, m))
        for p in range(1, 6)
        for m in (1, 2, 3, 5, 8)
    )
    covers = "1 to 5 stages, up to 8 micro-batches"
    covers += ", activations stored" if max_stored else ""
    return grade("schedule", covers, "Pipeline Parallelism", cases)


def _lists(f: Callable[..., Any], max_stored: Any, p: int, m: int) -> None:
    lists = called(lambda: [[*own] for own in f(p, m)])
    try:
        stages = len(stage_ranks(lists))
        verify_schedule(lists, stages, m)
    except PlanError as error:
        text = str(error)
        words = ""
        if "wait" in text:
            words = "A deadlock: devices wait for each other's messages."
        elif "expected 1 time" in text:
            words = "An instruction is missing, or is on another device."
        elif "before" in text:
            words = "An instruction comes before what it needs."
        raise Wrong(f"{text}.", words) from error
    if max_stored is None:
        return
    live, peak = Counter[int](), Counter[int]()
    for device, i in simulate(lists):
        live[device] += isinstance(i, Forward)
        peak[device] = max(peak[device], live[device])
        live[device] -= isinstance(i, Backward | BackwardWeight)
    for device in range(p):
        if peak[device] > max_stored(p, m, device):
            raise Wrong(
                f"Device {device}: expected the activations of at most "
                f"{max_stored(p, m, device)} micro-batches, got {peak[device]}.",
                "Backward passes come late: all forward passes first is GPipe.",
            )


def zero(f: Callable[..., Any]) -> Report:
    """Grade `f(parameters, devices, stage)`, the bytes per device under ZeRO.

    Mixed precision with Adam: 2 bytes of weights, 2 of gradients and 12 of optimizer
    state per parameter, without activations (Rajbhandari et al., 2020). Stage 0 is
    plain data parallelism.
    """
    sizes = [(1, 1), (8, 2), (7.5e9, 8), (7.5e9, 64)]
    cases = (
        Case(
            f"{count:g} parameters, {n} devices, stage {stage}",
            partial(_bytes, f, count, n, stage),
        )
        for count, n in sizes
        for stage in range(4)
    )
    covers = "stages 0 to 3, 1 to 64 devices"
    return grade("zero", covers, "Sharding: ZeRO and FSDP", cases)


def _bytes(f: Callable[..., Any], count: float, n: int, stage: int) -> None:
    def stored(weights: float, grads: float, states: float) -> list[np.ndarray]:
        whole = (2 * weights, 2 * grads, 12 * states)
        return [np.array([count * sum(whole)])]

    at = [[1 / n if stage >= shards else 1.0 for shards in order] for order in ORDERS]
    mistakes = [
        ("Stages shard in another order: 1 optimizer state, 2 gradients, 3 weights.",
         stored(*at[1])),
        ("The optimizer state is counted as 8 bytes: the float32 weights are missing.",
         [stored(*at[0])[0] - 4 * count * at[0][2]]),
        ("Everything is sharded at every stage.", stored(1 / n, 1 / n, 1 / n)),
        ("Nothing is sharded.", stored(1, 1, 1)),
        ("Weights and gradients are counted in float32.",
         [np.array([count * (4 * at[0][0] + 4 * at[0][1] + 12 * at[0][2])])]),
    ]  # fmt: skip
    got = [np.array([float(called(f, count, n, stage))])]
    compare(got, stored(*at[0]), mistakes, "result")


# The stage from which on weights, gradients and optimizer state are sharded.
ORDERS = [(3, 2, 1), (1, 2, 3)]


def ring_attention(
    f: Callable[..., Any], causal: bool = True, backend: str | None = None
) -> Report:
    """Grade `f(Qs, Ks, Vs)`, attention over a sequence that is cut over devices.

    One tensor (tokens, d) per device each, in the order of the sequence. It returns the
    devices' outputs: softmax(Q K^T / sqrt(d)) V, where with `causal` a query sees the
    keys up to its own position.
    """
    B = use(backend)
    cases = (
        Case(f"{k} devices, {n} tokens on each", partial(_attend, f, B, causal, k, n))
        for k, n in [(1, 2), (2, 1), (2, 3), (3, 2), (4, 4)]
    )
    covers = f"1 to 4 devices, {'causal' if causal else 'every token sees all'}"
    return grade("ring_attention", covers, "Long Sequences: Context Parallelism", cases)


def _attend(f: Callable[..., Any], B: Backend, causal: bool, k: int, n: int) -> None:
    rng, d = np.random.default_rng(k), 4
    Q, K, V = (2 * rng.normal(size=(k * n, d)) for _ in range(3))
    cuts = [slice(r * n, (r + 1) * n) for r in range(k)]
    local = places(B, k)

    def cut(x: np.ndarray) -> list[Any]:
        return [B.array(x[c], device) for c, device in zip(cuts, local, strict=True)]

    answer = called(f, cut(Q), cut(K), cut(V))
    if answer is None:
        raise Wrong(f"Expected a list of {k} outputs, got None.")
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
