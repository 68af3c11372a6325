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
    Report,
    Wrong,
    called,
    compare,
    grade,
    host,
    listed,
    places,
    unchanged,
)


def tensor_pair(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(X, W1, W2, devices)`, the pair of layers relu(X W1) W2 on devices.

    X (n, d), W1 (d, h), W2 (h, c). It returns the output (n, c) for every device; W1 is
    to be cut by columns and W2 by rows, evenly.
    """
    B = get_backend(backend)
    sizes = [(1, 2), (2, 2), (2, 6), (3, 6), (4, 8), (5, 10)]
    covers, where = "1 to 5 devices, all outputs", "Tensor Parallelism"
    run, words = partial(_pair, f, B), "{:device}, {} hidden features"
    return grade("tensor_pair", covers, where, run, words, sizes)


def _pair(f: Callable[..., Any], B: Backend, k: int, h: int) -> None:
    rng = np.random.default_rng(h)
    X, W1, W2 = (rng.normal(size=s) for s in ((3, 5), (5, h), (h, 4)))
    inputs = [B.array(x) for x in (X, W1, W2)]
    answer = listed(called(f, *inputs, places(B, k)), k, "outputs")
    unchanged(B, inputs, (X, W1, W2))
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
    sizes = [(p, m) for p in range(1, 6) for m in (1, 2, 3, 5, 8)]
    covers = "1 to 5 devices, up to 8 micro-batches"
    covers += ", activations stored" if max_stored else ""
    run, words = partial(_lists, f, max_stored), "{:device}, {:micro-batch}"
    return grade("schedule", covers, "Pipeline Parallelism", run, words, sizes)


KINDS: dict[str, type[Instruction]] = dict(
    F=Forward, B=Backward, I=BackwardInput, W=BackwardWeight
)


def _instructions(lists: list[list[Any]], m: int) -> Lists:
    """Return lists with transfers, also from tuples without any."""
    if not any(isinstance(i, tuple | list) for own in lists for i in own):
        return lists
    order: Order = []
    for d, own in enumerate(lists):
        for i in own:
            if not (isinstance(i, tuple | list) and len(i) == 3 and i[0] in KINDS):
                raise PlanError(f'expected ("F", stage, micro_batch), got {i!r:.80}')
        counts = Counter(map(tuple, own))
        for stage, micro in ((s, k) for s in {i[1] for i in own} for k in range(m)):
            F, back, I, W = (counts[kind, stage, micro] for kind in KINDS)
            if F != 1 or (back, I, W) not in ((1, 0, 0), (0, 1, 1)):
                found = f"{F} forward and {back or I + W} backward"
                place = f"Device {d}, stage {stage}, micro-batch {micro}"
                raise Wrong(f"{place}: expected one of each, got {found}.", MISSING)
        order.append(
            [KINDS[what](int(stage), int(micro)) for what, stage, micro in own]
        )
    return add_transfers(order)


MISSING = "An instruction is missing, comes twice, or is on another device."


def _lists(f: Callable[..., Any], max_stored: Any, p: int, m: int) -> None:
    answer = called(lambda: [[*own] for own in f(p, m)])
    if len(answer) != p:
        raise Wrong(f"Expected {p} lists, one per device, got {len(answer)}.")
    try:
        lists = _instructions(answer, m)
        stages = len(stage_ranks(lists))
        verify_schedule(lists, stages, m)
    except PlanError as error:
        text = str(error)
        words = ""
        if len(answer) > 1 and ("wait" in text or "deadlock" in text):
            words = "A deadlock: devices wait for each other's messages."
        elif "expected 1 time" in text:
            words = MISSING
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
    plain data parallelism. A device's share may be a fraction of a byte.
    """
    sizes = [(1, 1), (8, 2), (10, 3), (7.5e9, 8), (7.5e9, 64)]
    cases = [(count, n, stage) for count, n in sizes for stage in range(4)]
    covers, where = "stages 0 to 3, 1 to 64 devices", "Sharding: ZeRO and FSDP"
    words = "{:g} parameters, {:device}, stage {}"
    return grade("zero", covers, where, partial(_bytes, f), words, cases)


def _bytes(f: Callable[..., Any], count: float, n: int, stage: int) -> None:
    def stored(weights: float, grads: float, states: float) -> list[np.ndarray]:
        whole = (2 * weights, 2 * grads, 12 * states)
        return [np.array(count * sum(whole))]

    at = [[1 / n if stage >= shards else 1.0 for shards in order] for order in ORDERS]
    mistakes = [
        ("Stages shard in another order: 1 optimizer state, 2 gradients, 3 weights.",
         stored(*at[1])),
        ("The optimizer state is counted as 8 bytes: the float32 weights are missing.",
         [stored(*at[0])[0] - 4 * count * at[0][2]]),
        ("Everything is sharded at every stage.", stored(1 / n, 1 / n, 1 / n)),
        ("Nothing is sharded.", stored(1, 1, 1)),
        ("Weights and gradients are counted in float32.",
         stored(2 * at[0][0], 2 * at[0][1], at[0][2])),
    ]  # fmt: skip
    got = [np.array(float(called(f, count, n, stage)))]
    compare(got, stored(*at[0]), mistakes, "bytes", close=1e-6)


# The stage from which on weights, gradients and optimizer state are sharded.
ORDERS = [(3, 2, 1), (1, 2, 3)]
