"""Graders for data parallelism: the batch, the replicas, the step, sampler, warm-up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backends.protocol import Backend
from ..models import get_model
from ..optimizers import SGD
from ..parallel import data
from ..plans.rounds import even_bounds
from .report import Case, Report, Wrong, called, compare, grade, host, places, use

WHERE = "Data Parallelism"


def split_batch(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(X, y, devices)`, which returns lists of shards of X and of y.

    X (n, ...), y (n, ...). Every example must be on one device, with its own label and
    in order, and the numbers of examples may differ by one.
    """
    B = use(backend)
    sizes = [(n, k) for k in range(1, 6) for n in range(k, 12)]
    cases = (
        Case(f"{n} examples on {k} devices", partial(_split, f, B, n, k))
        for n, k in sorted(sizes)
    )
    return grade("split_batch", "1 to 5 devices, up to 11 examples", WHERE, cases)


def _split(f: Callable[..., Any], B: Backend, n: int, k: int) -> None:
    X_values = np.arange(2.0 * n).reshape(n, 2)
    y_values = np.arange(n)
    X, y = B.array(X_values), B.array(y_values)
    answer = called(f, X, y, places(B, k))
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Wrong("Expected two lists, the shards of X and those of y.")
    Xs, ys = ([host(x, B) for x in shards] for shards in answer)
    if len(Xs) != k or len(ys) != k:
        words = "torch.chunk and np.array_split differ: chunk may return fewer shards."
        raise Wrong(f"Expected {k} shards, got {len(Xs)} and {len(ys)}.", words)
    lengths, right = [len(x) for x in Xs], [b - a for a, b in even_bounds(n, k)]
    if [len(y) for y in ys] != lengths:
        found = f"{lengths} examples with {[len(y) for y in ys]} labels"
        raise Wrong(f"Shards hold {found}.", "X and y are split in different ways.")
    words = f"Expected shards of {right} examples in some order, got {lengths}."
    if sum(lengths) < n:
        raise Wrong(words, f"{n} % {k} examples are dropped: the remainder is lost.")
    if sum(lengths) > n:
        raise Wrong(words, "Some examples are on two devices, and count twice.")
    if max(lengths) - min(lengths) > 1:
        raise Wrong(words, "One device gets the whole remainder, and others wait.")
    if not np.array_equal(np.concatenate(Xs), X_values):
        raise Wrong("The shards together are not X.", "Examples changed places.")
    if not np.array_equal(np.concatenate(ys), y_values):
        raise Wrong("The shards together are not y.", "Labels left their examples.")
    for shard in answer[0]:
        B.write_(shard.reshape((-1,)), 0, 1, B.array(np.array([-1.0])))
    if not np.array_equal(host(X, B), X_values):
        words = "A shard is a view of the batch: a device has memory of its own."
        raise Wrong("Writing to a shard changed X.", words)


def get_params(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(params, device)`, which returns copies with gradients attached."""
    B = use(backend)
    cases = (
        Case(f"{k} replicas of {count} parameters", partial(_copies, f, B, k, count))
        for k in (1, 2, 3)
        for count in (1, 2, 3)
    )
    return grade("get_params", "1 to 3 replicas, also on one device", WHERE, cases)


def _copies(f: Callable[..., Any], B: Backend, k: int, count: int) -> None:
    values = [np.arange(1.0, 4.0 + i) for i in range(count)]
    params = [B.array(v) for v in values]
    replicas = [called(f, params, device) for device in places(B, k)]
    for replica in replicas:
        if not isinstance(replica, tuple | list) or len(replica) != count:
            raise Wrong(f"Expected a list of {count} parameters, got {replica!r}.")
        compare([host(p, B) for p in replica], values, what="parameter")
    for p, v in zip(replicas[0], values, strict=True):
        try:
            with B.record():
                loss = (p * p).sum()
            B.backward([loss])
            grad = host(B.grad(p), B)
        except Exception as error:
            words = "No gradient is attached, or the copy was made after it was."
            raise Wrong(f"A backward pass raised {error}.", words) from error
        if not np.allclose(grad, 2 * v):
            words = "The gradient is attached to another tensor than the copy."
            raise Wrong(f"Expected the gradient {2 * v}, got {grad}.", words)
        with B.pause():
            B.write_(p, 0, 1, B.array(np.array([-1.0])))
    shared = "Replicas share memory: copying to the device where a tensor is, copies \
nothing. Each replica's update would reach all of them."
    for other, v in zip([*params, *sum(replicas[1:], [])], values * k, strict=True):
        if not np.array_equal(host(other, B), v):
            raise Wrong("Writing to replica 0 changed another tensor.", shared)


def train_batch(
    f: Callable[..., Any], model: str = "lenet", backend: str | None = None
) -> Report:
    """Grade `f(X, y, device_params, devices, lr)`, which takes one step of SGD.

    X (n, 1, 28, 28) and y (n,) for `lenet`. It must use the network `model` and the sum
    of the losses over the batch, divided by n, and update all replicas in place. All
    are compared with one device after each of two steps.
    """
    B = use(backend)
    sizes = [(2, 1), (2, 2), (4, 2), (5, 2), (7, 3), (8, 4)]
    cases = (
        Case(f"{n} examples on {k} devices", partial(_step, f, B, model, n, k))
        for n, k in sizes
    )
    words = "two steps on 1 to 4 devices, all replicas, also with uneven shards"
    return grade("train_batch", words, WHERE, cases)


def _step(f: Callable[..., Any], B: Backend, model: str, n: int, k: int) -> None:
    network, rng, lr = get_model(model), np.random.default_rng(0), 0.05
    start = network.initial(rng)
    X_values = rng.normal(size=(n, *_input_shape(model)))
    y_values = rng.integers(0, 10, n)
    X, y = B.array(X_values), B.array(y_values)
    local = places(B, k)
    replicas = [data.get_params([B.array(p) for p in start], d) for d in local]

    def gradient(params: list[np.ndarray], first: int, last: int) -> list[np.ndarray]:
        (device,) = places(B, 1)
        one = data.get_params([B.array(p) for p in params], device)
        part = B.array(X_values[first:last]), B.array(y_values[first:last])
        data.train_batch(*part, [one], [device], 1.0, model=network, optimizer=SGD())
        new = [host(p, B) for p in one]
        return [(p - q) * (last - first) for p, q in zip(params, new, strict=True)]

    weights, before = start, [np.zeros_like(p) for p in start]
    for number in (1, 2):
        called(f, X, y, replicas, local, lr)
        shards = [gradient(weights, *cut) for cut in even_bounds(n, k)]
        total = [np.sum(parts, axis=0) for parts in zip(*shards, strict=True)]
        lengths = [b - a for a, b in even_bounds(n, k)]

        def moved(
            *grads: list[np.ndarray], by: float, old: list[np.ndarray] = weights
        ) -> list[np.ndarray]:
            each = grads if len(grads) > 1 else grads * k
            return [p - by * g for own in each for p, g in zip(old, own, strict=True)]

        means = [
            sum(g / m for g, m in zip(parts, lengths, strict=True)) / k
            for parts in zip(*shards, strict=True)
        ]
        both = [a + b for a, b in zip(total, before, strict=True)]
        nothing = [np.zeros_like(p) for p in start]
        mistakes = [
            (
                "The gradient is not divided by the number of examples.",
                moved(total, by=lr),
            ),
            (
                "A mean of means: each device divided by its own number of examples.",
                moved(means, by=lr),
            ),
            (
                "The gradients were not summed over the devices.",
                moved(*shards, by=lr / n),
            ),
            (
                "The gradient is summed, and divided by the examples of one device.",
                moved(total, by=lr * k / n),
            ),
            (
                "The gradient is divided by the number of devices once more.",
                moved(total, by=lr / n / k),
            ),
            ("No replica was updated in place.", moved(nothing, by=0)),
            (
                "Gradients of the step before were added: clear them first.",
                moved(both, by=lr / n),
            ),
            (
                "Only replica 0 was updated: the others got no sum, or a new tensor.",
                moved(total, *[nothing] * (k - 1), by=lr / n) if k > 1 else [],
            ),
            (
                "Gradient ascent: the update has the wrong sign.",
                moved(total, by=-lr / n),
            ),
        ]
        got = [host(p, B) for replica in replicas for p in replica]
        right = moved(total, by=lr / n)
        compare(got, right, mistakes, f"step {number}, tensor")
        weights, before = right[: len(start)], total


def _input_shape(model: str) -> tuple[int, ...]:
    return (1, 28, 28) if model == "lenet" else (784,)


def sampler(f: Callable[..., Any]) -> Report:
    """Grade `f(n, ranks, rank, epoch)`, which returns the indices of a rank's examples.

    Every rank gets equally many in each epoch, together they cover all n examples with
    as few repetitions as that allows, and the order changes from epoch to epoch.
    """
    sizes = [(8, 1), (8, 2), (9, 2), (12, 3), (13, 4), (50, 7)]
    cases = (
        Case(f"{n} examples on {ranks} ranks", partial(_sampled, f, n, ranks))
        for n, ranks in sizes
    )
    return grade("sampler", "1 to 7 ranks, three epochs", WHERE, cases)


def _sampled(f: Callable[..., Any], n: int, ranks: int) -> None:
    epochs = []
    for epoch in range(3):
        own = [[int(i) for i in called(f, n, ranks, r, epoch)] for r in range(ranks)]
        again = [int(i) for i in called(f, n, ranks, 0, epoch)]
        epochs.append(own)
        lengths, flat = [len(x) for x in own], [i for x in own for i in x]
        if again != own[0]:
            words = "It is not seeded by the epoch, so ranks draw different orders."
            raise Wrong("Asked twice for one rank and epoch, it differs.", words)
        if ranks > 1 and all(sorted(x) == list(range(n)) for x in own):
            words = "Every rank trains on all data: an epoch costs as much as before."
            raise Wrong(f"Expected {-(-n // ranks)} examples per rank, got {n}.", words)
        if len(set(lengths)) > 1:
            words = "A rank with more batches waits forever for the others' gradients."
            raise Wrong(f"Ranks got {lengths} examples.", words)
        if missing := set(range(n)) - set(flat):
            words = "The remainder is dropped, or ranks shuffle in different orders."
            raise Wrong(f"No rank got example {min(missing)}.", words)
        if len(flat) != ranks * -(-n // ranks):
            raise Wrong(f"Expected {ranks * -(-n // ranks)} indices, got {len(flat)}.")
    if epochs[0] == epochs[1] == epochs[2]:
        words = "The epoch is not used: this is a forgotten `set_epoch`."
        raise Wrong("Three epochs have the same order.", words)


def warmup(f: Callable[..., Any]) -> Report:
    """Grade `f(step, lr, devices, warmup_steps)`, which returns a learning rate.

    It grows linearly from lr at step 0 to devices * lr at `warmup_steps`, and stays
    there (Goyal et al., 2017).
    """
    sizes = [(1, 4), (2, 4), (8, 5), (256, 100)]
    cases = (
        Case(f"{k} devices, {steps} steps of warm-up", partial(_warm, f, k, steps))
        for k, steps in sizes
    )
    covers = "1 to 256 devices, before, at, and after the end of the warm-up"
    return grade("warmup", covers, "Large Batches", cases)


def _warm(f: Callable[..., Any], k: int, steps: int) -> None:
    lr, at = 0.1, np.arange(2 * steps + 1.0)
    share = np.minimum(at / steps, 1)

    def rates(first: float, last: float, share: np.ndarray = share) -> list[np.ndarray]:
        return [first + (last - first) * share]

    mistakes = [
        (
            "The learning rate is not scaled by the number of devices.",
            rates(lr, lr),
        ),
        (
            "There is no warm-up: the first steps are too large.",
            rates(k * lr, k * lr),
        ),
        ("It starts at 0 instead of at the rate for one device.", rates(0, k * lr)),
        ("It grows to sqrt(devices) times the rate.", rates(lr, np.sqrt(k) * lr)),
        (
            "It goes on growing after the warm-up.",
            rates(lr, k * lr, at / steps),
        ),
        (
            "The warm-up ends one step early: steps are counted from 0.",
            rates(lr, k * lr, np.minimum((at + 1) / steps, 1)),
        ),
    ]
    got = [np.array([float(called(f, int(i), lr, k, steps)) for i in at])]
    compare(got, rates(lr, k * lr), mistakes, "result")
