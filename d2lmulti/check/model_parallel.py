"""Graders for splitting the model: tensors, pipelines, and shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..errors import PlanError
from ..plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    Order,
    add_transfers,
    simulate,
    stage_ranks,
    verify_schedule,
)
from ..plans.rounds import even_bounds
from .report import (
    Case,
    Report,
    Wrong,
    called,
    compare,
    grade,
    host,
    number,
    places,
    unchanged,
)


def tensor_pair(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(X, W1, W2, devices)`, the pair of layers relu(X W1) W2 on devices.

    X (n, d), W1 (d, h), W2 (h, c). It returns the output (n, c) for every device; W1 is
    to be cut by columns and W2 by rows, evenly.
    """
    B = get_backend(backend)
    cases = (
        Case(f"{number(k, 'device')}, {h} hidden features", partial(_pair, f, B, k, h))
        for k, h in [(1, 2), (2, 2), (2, 6), (3, 6), (4, 8), (5, 10)]
    )
    covers = "1 to 5 devices, all outputs"
    return grade("tensor_pair", covers, "Tensor Parallelism", cases)


def _pair(f: Callable[..., Any], B: Backend, k: int, h: int) -> None:
    rng = np.random.default_rng(h)
    X, W1, W2 = (rng.normal(size=s) for s in ((3, 5), (5, h), (h, 4)))
    inputs = [B.array(x) for x in (X, W1, W2)]
    answer = called(f, *inputs, places(B, k))
    unchanged(B, inputs, (X, W1, W2))
    if answer is None:
        raise Wrong(f"Expected a list of {k} outputs, got None.")
    right = np.maximum(X @ W1, 0) @ W2
    cuts = [slice(*bounds) for bounds in even_bounds(h, k)]
    partial_sums = [np.maximum(X @ W1[:, c], 0) @ W2[c] for c in cuts]
    rows = [slice(*bounds) for bounds in even_bounds(5, k)]
    summed_late = sum(np.maximum(X[:, r] @ W1[r], 0) for r in rows) @ W2
    mistakes = [
        ("These are partial sums: the all-reduce at the end is missing.", partial_sums),
        ("Only device 0 has the sum: every device needs the output.",
         [right, *partial_sums[1:]]),
        ("The ReLU is missing.", [X @ W1 @ W2] * k),
        ("The outputs are averaged, and not summed.", [right / k] * k),
        (
            "ReLU was applied to partial sums: the first layer is cut by rows, and "
            "relu(a + b) is not relu(a) + relu(b).",
            [summed_late] * k,
        ),
    ]  # fmt: skip
    compare([host(x, B) for x in answer], [right] * k, mistakes)


def schedule(
    f: Callable[..., Any], max_stored: Callable[[int, int, int], int] | None = None
) -> Report:
    """Grade `f(devices, micro_batches)`, which returns each device's instructions.

    They are the library's, with transfers and a `Step` at the end, or the chapter's
    tuples: `("F", stage, micro_batch)`, `"B"`, or the halves `"I"` and `"W"`. To
    tuples, the transfers are added. Every computation must happen once, in an order
    without deadlock, also where a send waits for its receiver.
    `max_stored(devices, micro_batches, device)` bounds the micro-batches whose
    activations a device stores at once, such as `lambda p, m, d: min(p - d, m)` for
    1F1B.
    """
    cases = (
        Case(
            f"{number(p, 'device')}, {number(m, 'micro-batch')}",
            partial(_lists, f, max_stored, p, m),
        )
        for p in range(1, 6)
        for m in (1, 2, 3, 5, 8)
    )
    covers = "1 to 5 devices, up to 8 micro-batches"
    covers += ", activations stored" if max_stored else ""
    return grade("schedule", covers, "Pipeline Parallelism", cases)


KINDS: dict[str, type[Instruction]] = {
    "F": Forward,
    "B": Backward,
    "I": BackwardInput,
    "W": BackwardWeight,
}


def _instructions(lists: list[list[Any]]) -> Lists:
    """Return lists with transfers, also from tuples without any."""
    if not any(isinstance(i, tuple) for own in lists for i in own):
        return lists
    order: Order = []
    for own in lists:
        if wrong := [i for i in own if not isinstance(i, tuple) or i[0] not in KINDS]:
            raise PlanError(f'expected ("F", stage, micro_batch), got {wrong[0]!r:.80}')
        order.append([KINDS[what](stage, micro) for what, stage, micro in own])
    return add_transfers(order)


def _lists(f: Callable[..., Any], max_stored: Any, p: int, m: int) -> None:
    answer = called(lambda: [[*own] for own in f(p, m)])
    if len(answer) != p:
        raise Wrong(f"Expected {p} lists, one per device, got {len(answer)}.")
    try:
        lists = _instructions(answer)
        stages = len(stage_ranks(lists))
        verify_schedule(lists, stages, m)
    except PlanError as error:
        text = str(error)
        words = ""
        if len(answer) > 1 and ("wait" in text or "deadlock" in text):
            words = "A deadlock: devices wait for each other's messages."
        elif "expected 1 time" in text:
            words = "An instruction is missing, comes twice, or is on another device."
        elif "before" in text or "nobody can go on" in text:
            words = "An instruction comes before what it needs."
        raise Wrong(f"{text}.", words) from error
    if stages % p:
        raise Wrong(f"Expected equally many stages per device, got {stages} stages.")
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
    sizes = [(1, 1), (8, 2), (10, 3), (7.5e9, 8), (7.5e9, 64)]
    cases = (
        Case(
            f"{count:g} parameters, {number(n, 'device')}, stage {stage}",
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
