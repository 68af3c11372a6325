"""Graders for what is split otherwise: tensors, pipelines, shards, and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..errors import PlanError
from ..plans import pipeline
from ..plans.rounds import even_bounds
from .compare import (
    compare,
    compare_rows,
    gradients,
    placed,
    places,
    unchanged,
    wrong_sums,
)
from .report import (
    FORM,
    Count,
    Function,
    Report,
    Wrong,
    called,
    grade,
    listed,
    number,
    shown,
    whole,
)


def tensor_pair(
    pair: Function,
    backend: str | None = None,
    operators: tuple[Function, Function] | None = None,
) -> Report:
    """Grade `pair(X, W1, W2, devices)`, the layers relu(X W1) W2 on devices.

    X (n, d), W1 (d, h), W2 (h, c). It returns the output (n, c) for every device; W1 is
    to be cut by columns and W2 by rows, evenly. With `operators`, the chapter's (f, g),
    these are graded too, forward and backward. Each takes one tensor per device as
    arguments, and returns one per device that the framework can differentiate, as
    `torch.autograd.Function.apply` does.
    """
    B = get_backend(backend)
    sizes = [(1, 2), (2, 2), (2, 6), (3, 6), (4, 8), (5, 10)]
    covers, where = "1 to 5 devices, all outputs", "Tensor Parallelism"
    covers += ", f and g in both passes" if operators else ""
    words = "{:device}, {} hidden features"
    return grade("tensor_pair", covers, where, words, sizes, _pair, pair, operators, B)


def _pair(pair: Function, operators: Any, B: Backend, k: int, h: int) -> None:
    rng = np.random.default_rng([k, h])
    X, W1, W2 = (rng.normal(size=s) for s in ((3, 5), (5, h), (h, 4)))
    inputs = [B.array(x) for x in (X, W1, W2)]
    answer = listed(called(pair, *inputs, places(B, k)), "output", k)
    unchanged(inputs, (X, W1, W2))
    right = np.maximum(X @ W1, 0) @ W2
    cuts = [slice(*bounds) for bounds in even_bounds(h, k)]
    partial_sums = [np.maximum(X @ W1[:, c], 0) @ W2[c] for c in cuts]
    rows = [slice(*bounds) for bounds in even_bounds(5, k)]
    summed_late = sum(np.maximum(X[:, r] @ W1[r], 0) for r in rows) @ W2
    mistakes = [
        ("The ReLU is missing.", [X @ W1 @ W2] * k),
        ("The ReLU comes after the second matrix.", [np.maximum(X @ W1 @ W2, 0)] * k),
        ("There is a second ReLU after the second matrix.", [np.maximum(right, 0)] * k),
        ("ReLU was applied to partial sums: the first layer is cut by rows, and \
relu(a + b) is not relu(a) + relu(b).", [summed_late] * k),
        ("Partial sums are concatenated, and not summed.",
         [np.concatenate(partial_sums, axis=1)] * k),
    ]  # fmt: skip
    own = "These are partial sums: the all-reduce at the end is missing."
    compare(answer, [right] * k, [*mistakes, *wrong_sums(partial_sums, own)])
    for name, operator in zip("fg", operators or (), strict=False):
        _operator(name, operator, B, partial_sums)


PASSES = {
    "f forward": "f adds in the forward pass, where it should only copy.",
    "f backward": "The backward pass of f does not add: each device keeps only its own \
part of the gradient.",
    "g forward": "g does not add in the forward pass: these are partial sums.",
    "g backward": "g adds in the backward pass too: the loss, which every device \
computes, then counts once per device.",
}


def _operator(name: str, operator: Function, B: Backend, values: Any) -> None:
    k, xs = len(values), placed(B, values)
    # After g, all devices compute one loss; after f, each has a part of its own.
    grads = values if name == "f" else values[:1] * k
    for x in xs:
        B.attach_grad(x)
    with B.record():
        ys = listed(called(operator, *xs), "tensor", k)
        losses = [(y * d).sum() for y, d in zip(ys, placed(B, grads), strict=True)]
    words = f"{B.name}'s autograd does not lead from results to inputs, or the \
backward pass does not return a gradient per device."
    for what, given, got in (
        ("forward", values, ys),
        ("backward", grads, gradients(B, losses, xs, f"{name}: {words}")),
    ):
        place = f"{name} {what}"
        total = [np.sum(given, axis=0)] * k
        adds = place in ("f backward", "g forward")
        wrong = wrong_sums(given, PASSES[place]) if adds else [(PASSES[place], total)]
        nothing = [0 * x for x in given]
        wrong += [
            (f"{place}: it is zero.", nothing),
            (f"{place}: it is divided by the devices.", [x / k for x in given]),
            (f"{place}: only device 0 has it.", [given[0], *nothing[1:]]),
        ]
        words = f"operator {place}, device {{}}"
        compare(got, total if adds else given, wrong, words)


def schedule(
    f: Function, max_stored: Callable[[int, int, int], int] | None = None
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
    where, words = "Pipeline Parallelism", "{:device}, {:micro-batch}"
    return grade("schedule", covers, where, words, sizes, _lists, f, max_stored)


KINDS: dict[str, type[pipeline.Instruction]] = dict(
    F=pipeline.Forward,
    B=pipeline.Backward,
    I=pipeline.BackwardInput,
    W=pipeline.BackwardWeight,
)


def _instructions(lists: list[list[Any]], m: int) -> pipeline.Lists:
    """Return lists with transfers, also from tuples without any."""
    if not any(isinstance(i, tuple | list) for own in lists for i in own):
        return lists
    order: pipeline.Order = []
    for d, own in enumerate(lists):
        for i in own:
            if not (isinstance(i, tuple | list) and len(i) == 3 and i[0] in KINDS):
                raise PlanError(f'expected ("F", stage, micro_batch), got {shown(i)}')
        own = [(kind, whole(stage), whole(micro)) for kind, stage, micro in own]
        counts = Counter(own)
        for stage, micro in ((s, k) for s in {i[1] for i in own} for k in range(m)):
            F, back, I, W = (counts[kind, stage, micro] for kind in KINDS)
            if F != 1 or (back, I, W) not in ((1, 0, 0), (0, 1, 1)):
                halves = f", {I} of half I and {W} of half W" if I or W else ""
                found = f"{F} forward and {back} backward{halves}"
                place = f"Device {d}, stage {stage}, micro-batch {micro}"
                raise Wrong(f"{place}: expected one of each, got {found}.", MISSING)
        order.append([KINDS[kind](stage, micro) for kind, stage, micro in own])
    return pipeline.add_transfers(order)


MISSING = "An instruction is missing, comes twice, or is on another device."
DEADLOCK = "A deadlock: devices wait for each other's messages."
EARLY = "An instruction comes before what it needs."
GPIPE = "All forward passes come first: that is GPipe."
LATE = "Backward passes come late: a forward pass too many is before them."
HALF = "Activations are stored until half W, which comes late."
COUNTED = "Stages and micro-batches are counted from 0."
INVALID = {  # a part of what the library says of a schedule, and the mistake
    "expected 1 time": MISSING,
    "computes no stage": MISSING,
    "expected 0 times": COUNTED,
    "computes stage 0": COUNTED,
    "expected (": FORM,
    "before": EARLY,
}


def _lists(f: Function, max_stored: Any, p: int, m: int) -> None:
    answer = [listed(own, "instruction") for own in listed(called(f, p, m), "list", p)]
    try:
        lists = _instructions(answer, m)
        stages = len(pipeline.stage_ranks(lists))
        pipeline.verify_schedule(lists, stages, m)
    except PlanError as error:
        text = str(error)
        words = [told for part, told in INVALID.items() if part in text]
        if "wait" in text or "deadlock" in text:
            words = [DEADLOCK if p > 1 else EARLY]
        raise Wrong(f"{text}.", *words) from error
    if stages % p:
        raise Wrong(f"Expected equally many stages per device, got {stages} stages.")
    live = Counter[int]()
    for device, i in pipeline.simulate(lists) if max_stored else ():
        live[device] += isinstance(i, pipeline.Forward)
        if live[device] > (most := max_stored(p, m, device)):
            bound = f"activations of at most {Count(most):micro-batch}"
            found = f"Device {device}: expected {bound}, got {live[device]} at once."
            kinds = [type(x) for x in lists[device]]
            last = max(n for n, kind in enumerate(kinds) if kind is pipeline.Forward)
            words = [LATE] if pipeline.Backward in kinds[:last] else [GPIPE, LATE]
            raise Wrong(found, *([HALF] if pipeline.BackwardWeight in kinds else words))
        live[device] -= isinstance(i, pipeline.Backward | pipeline.BackwardWeight)


def zero(f: Function) -> Report:
    """Grade `f(parameters, devices, stage)`, the bytes per device under ZeRO.

    Mixed precision with Adam: 2 bytes of weights, 2 of gradients and 12 of optimizer
    state per parameter, without activations (Rajbhandari et al., 2020). Stage 0 is
    plain data parallelism. A device's share may be a fraction of a byte.
    """
    sizes = [(1, 1), (8, 2), (10, 3), (7_500_000_000, 8), (7_500_000_000, 64)]
    cases = [(count, n, stage) for count, n in sizes for stage in range(4)]
    covers, where = "stages 0 to 3, 1 to 64 devices", "Sharding: ZeRO and FSDP"
    words = "{:parameter}, {:device}, stage {}"
    return grade("zero", covers, where, words, cases, _bytes, f)


ROUND = "The shares are rounded; here they may be fractions."


def _bytes(f: Function, count: int, n: int, stage: int) -> None:
    def stored(
        first: Any = (3, 2, 1), size: Any = (2, 2, 12), part: float = count / n
    ) -> list[np.ndarray]:
        """Count weights, gradients and state, each sharded from its stage on."""
        return [np.dot(size, [part if stage >= s else count for s in first])]

    (right,) = stored()
    one_kind = [stage != 3, stage != 2, stage != 1]
    mistakes = [
        ("Stage 3 does not shard the weights.", stored((4, 2, 1))),
        ("A stage shards what the stages before it do, too.",
         [np.dot((2, 2, 12), np.where(one_kind, count, count / n))]),
        (ROUND, [np.floor(right)]),
        (ROUND, stored(part=count // n)),
        (ROUND, stored(part=-(-count // n))),
        ("Stages shard in another order: 1 optimizer state, 2 gradients, 3 weights.",
         stored((1, 2, 3))),
        ("Each stage shards what the one before it should.", stored((4, 3, 2))),
        ("Everything is sharded at every stage.", stored((0, 0, 0))),
        ("Nothing is sharded.", stored((4, 4, 4))),
        ("The optimizer state is counted as 8 bytes: the float32 weights are missing.",
         stored(size=(2, 2, 8))),
        ("The optimizer state is counted as 16 bytes: weights and Adam's two in \
float32 are 12.", stored(size=(2, 2, 16))),
        ("Weights and gradients are counted in float32.", stored(size=(4, 4, 12))),
        ("Gradients are counted in float32.", stored(size=(2, 4, 12))),
        ("These are the bytes of all devices together.", [n * x for x in stored()]),
    ]  # fmt: skip
    got = [np.array(number(called(f, count, n, stage)))]
    compare(got, stored(), mistakes, "bytes", close=1e-6)


def ring_attention(
    f: Function, causal: bool = True, backend: str | None = None
) -> Report:
    """Grade `f(Qs, Ks, Vs)`, attention over a sequence that is cut over devices.

    One tensor (tokens, d) per device each, in the order of the sequence. It returns the
    devices' outputs: softmax(Q K^T / sqrt(d)) V, where with `causal` a query sees the
    keys up to its own position.
    """
    B = get_backend(backend)
    cases = [(1, 2, 2), (2, 1, 2), (2, 3, 2), (3, 2, 2), (4, 4, 2), (5, 2, 2)]
    cases += [(3, 2, 50)]  # large scores
    covers = "1 to 5 devices, small and large scores, "
    covers += "causal" if causal else "every token sees all"
    where, words = "Long Sequences: Context Parallelism", "{:device}, {:token} on each"
    return grade("ring_attention", covers, where, words, cases, _attend, f, B, causal)


def _attend(f: Function, B: Backend, causal: bool, k: int, n: int, size: float) -> None:
    rng, d = np.random.default_rng(k), 2 + k
    Q, K, V = (size * rng.normal(size=(k * n, d)) for _ in range(3))
    cuts = [slice(r * n, (r + 1) * n) for r in range(k)]
    inputs = [placed(B, [x[c] for c in cuts]) for x in (Q, K, V)]
    answer = listed(called(f, *map(list, inputs)), "output", k)
    unchanged(sum(inputs, []), [x[c] for x in (Q, K, V) for c in cuts])
    at = np.arange(k * n)
    row, device = at[:, None], at // n
    later, elsewhere = at > row, device != device[:, None]
    later_inside = at % n > row % n
    last_step = device == (device[:, None] + 1) % k if k > 1 else elsewhere

    def scores(scale: float, hidden: Any) -> np.ndarray:
        return np.where(hidden, -np.inf, Q @ K.T * scale)

    def weights_of(s: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.exp(s - s.max(axis=1, keepdims=True))

    def attend(s: np.ndarray, divide: bool = True) -> np.ndarray:
        weights = weights_of(s)
        return weights / (weights.sum(axis=1, keepdims=True) if divide else 1) @ V

    def by_block(s: np.ndarray) -> np.ndarray:
        blocks = [np.where(device == r, s, -np.inf) for r in range(k)]
        return np.sum([np.nan_to_num(attend(block)) for block in blocks], axis=0)

    def unscaled(s: np.ndarray) -> np.ndarray:
        weights = np.zeros_like(s)
        for r, c in enumerate(cuts):
            top = np.full((n, 1), -np.inf)
            for step in range(k):
                block = cuts[r - step]
                top = np.maximum(top, s[c, block].max(axis=1, keepdims=True))
                weights[c, block] = np.exp(s[c, block] - top)
        return weights

    def rows(weights: np.ndarray) -> np.ndarray:
        return weights.sum(axis=1, keepdims=True)

    scale = d**-0.5
    right, everything = scores(scale, later & causal), scores(scale, False)
    faded, unfaded = weights_of(right), unscaled(right)
    mistakes = [
        ("Each device attends to its own keys only: K and V were not passed on.",
         attend(np.where(elsewhere, -np.inf, right))),
        ("Blocks are normalized one by one: the running maximum and sum are missing.",
         by_block(right)),
        ("Blocks are normalized one by one, and averaged.",
         by_block(right) / (device[:, None] + 1 if causal else k)),
        ("Earlier blocks are not scaled down when the running maximum grows.",
         unfaded / rows(unfaded) @ V),
        ("The sum of weights is not scaled down when the running maximum grows.",
         faded / rows(unfaded) @ V),
        ("The output is not scaled down when the running maximum grows.",
         unfaded / rows(faded) @ V),
        ("The output is not divided by the sum of the weights.", attend(right, False)),
        ("The last step is missing: no device sees its right neighbor's keys.",
         attend(np.where(last_step, -np.inf, right))),
        ("There is no causal mask.", attend(everything)),
        ("A token sees the next one, too: the mask is one off.",
         attend(scores(scale, at > row + 1))),
        ("A token does not see itself: the mask is one off.",
         attend(scores(scale, at >= row))),
        ("The mask hides later devices, but no later tokens of its own.",
         attend(scores(scale, device > device[:, None]))),
        ("Masked scores are 0, whose exp is 1: they must be -inf.",
         attend(np.where(later, 0, everything))),
        ("The mask comes after the softmax: the weights no longer sum to 1.",
         weights_of(everything) / rows(weights_of(everything)) * ~later @ V),
        ("The mask uses positions within a device instead of in the sequence.",
         attend(scores(scale, later_inside))),
        ("The scores are not divided by sqrt(d).", attend(scores(1.0, later & causal))),
        ("The scores are divided by d, not sqrt(d).",
         attend(scores(1 / d, later & causal))),
        ("There is a causal mask, where every token should see all.",
         attend(scores(scale, later))),
    ]  # fmt: skip
    compare_rows(answer, attend(right), mistakes, cuts)


def experts(f: Function, backend: str | None = None) -> Report:
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
        (1, 2, 3, 3, 1), (1, 2, 4, 1, 1), (2, 2, 3, 3, 1), (2, 2, 6, 1, 1),
        (2, 4, 9, 2, 1), (3, 6, 11, 1, 1), (4, 8, 30, 2, 1), (5, 5, 17, 1, 1),
        (2, 4, 9, 2, 1000),
    ]  # fmt: skip
    covers = "1 to 5 devices, dropped tokens, uneven shards, large scores"
    where = "Mixture of Experts and Expert Parallelism"
    words = "{:device}, {} experts, {} tokens, capacity {}"
    return grade("experts", covers, where, words, cases, _route, f, B)


def _route(
    f: Function, B: Backend, k: int, E: int, tokens: int, capacity: int, size: float
) -> None:
    rng, d, h = np.random.default_rng(tokens), 3, 4
    X, router = rng.normal(size=(tokens, d)), size * rng.normal(size=(d, E))
    W1, W2 = rng.normal(size=(E, d, h)), rng.normal(size=(E, h, d))
    cuts = [slice(*bounds) for bounds in even_bounds(tokens, k)]
    Xs = placed(B, [X[c] for c in cuts])
    inputs = [*Xs, *(B.array(w) for w in (router, W1, W2))]
    answer = listed(called(f, [*Xs], *inputs[k:], capacity), "output", k)
    unchanged(inputs, [*(X[c] for c in cuts), router, W1, W2])
    scores = X @ router
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = weights / weights.sum(axis=1, keepdims=True)
    choice, gate = p.argmax(axis=1), p.max(axis=1)[:, None]
    device = np.repeat(np.arange(k), [c.stop - c.start for c in cuts])

    def through(expert: np.ndarray, relu: bool = True) -> np.ndarray:
        hidden = np.einsum("td,tdh->th", X, W1[expert])
        hidden = np.maximum(hidden, 0) if relu else hidden
        return np.einsum("th,thd->td", hidden, W2[expert])

    def kept(order: np.ndarray, group: np.ndarray, slots: int = capacity) -> np.ndarray:
        """Return which tokens find a slot if they come in this order."""
        used, found = Counter[tuple[int, int]](), np.zeros((tokens, 1), bool)
        for t in order:
            place = int(group[t]), int(choice[t])
            found[t] = used[place] < slots
            used[place] += 1
        return found

    first = np.arange(tokens)
    has, whole = kept(first, device), through(choice)
    own = device * (E // k) + choice % (E // k)
    mistakes = [
        ("The gate is missing: the router learns through its probability.",
         X + has * whole),
        ("The output of an expert is not added to its input.", has * gate * whole),
        ("The output of an expert is not added to its input.",
         np.where(has, gate * whole, X)),
        ("Dropped tokens are zero: without a slot, the output is the input.",
         has * (X + gate * whole)),
        ("No token is dropped: the capacity is not kept.", X + gate * whole),
        ("The slots are those of all devices together, not of each.",
         X + kept(first, 0 * device) * gate * whole),
        ("The capacity is one too large.",
         X + kept(first, device, capacity + 1) * gate * whole),
        ("The capacity is one too small.",
         X + kept(first, device, capacity - 1) * gate * whole),
        ("The most probable tokens get the slots, and not the first.",
         X + kept(np.argsort(-gate[:, 0]), device) * gate * whole),
        ("The gate multiplies the input, too.", np.where(has, gate * (X + whole), X)),
        ("The gate is a score, without the softmax.",
         X + has * scores.max(axis=1, keepdims=True) * whole),
        ("The last tokens get the slots, and not the first.",
         X + kept(first[::-1], device) * gate * whole),
        ("Each device used its own experts: no token was sent to another device.",
         X + has * gate * through(own)),
        ("The ReLU is missing.", X + has * gate * through(choice, False)),
    ]  # fmt: skip
    compare_rows(answer, X + has * gate * whole, mistakes, cuts)
