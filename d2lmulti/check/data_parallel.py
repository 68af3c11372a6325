"""Graders for data parallelism: the batch, the replicas, and the step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..models import get_model
from ..optimizers import SGD
from ..parallel import data
from ..plans.rounds import even_bounds
from .report import (
    Report,
    Wrong,
    called,
    compare,
    grade,
    host,
    places,
    same_bits,
    separate,
    unchanged,
)

WHERE = "Data Parallelism"
SHARED = "Replicas share memory: copying to the device where a tensor is, copies \
nothing. Each replica's update would reach all of them."


def split_batch(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(X, y, devices)`, which returns lists of shards of X and of y.

    X (n, ...), y (n, ...). Every example must be on one device, with its own label and
    in order, and the numbers of examples may differ by one.
    """
    B = get_backend(backend)
    sizes = sorted((n, k) for k in range(1, 6) for n in range(k, 12))
    covers, words = "1 to 5 devices, up to 11 examples", "{:example} on {:device}"
    return grade("split_batch", covers, WHERE, partial(_split, f, B), words, sizes)


def _split(f: Callable[..., Any], B: Backend, n: int, k: int) -> None:
    X_values = np.random.default_rng(n).normal(size=(n, 2, 3))
    y_values = np.arange(n)
    X, y = B.array(X_values), B.array(y_values)
    answer = called(f, X, y, places(B, k))
    unchanged(B, (X, y), (X_values, y_values))
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
    for x, name in ((Xs[0], "X"), (ys[0], "y")):
        given = (X_values if name == "X" else y_values).dtype
        if x.dtype != given:
            words = f"The dtype of {name} was changed."
            raise Wrong(f"Expected {name} in {given}, got {x.dtype}.", words)
    if not np.array_equal(np.concatenate(Xs), X_values):
        raise Wrong("The shards together are not X.", "Examples changed places.")
    if not np.array_equal(np.concatenate(ys), y_values):
        raise Wrong("The shards together are not y.", "Labels left their examples.")
    for shard, label in zip(*answer, strict=True):
        B.write_(shard, 0, 1, B.array(np.array([-1.0])))
        B.write_(label, 0, 1, B.array(np.array([-1])))
    for whole, values, name in ((X, X_values, "X"), (y, y_values, "y")):
        if not np.array_equal(host(whole, B), values):
            words = "A shard is a view of the batch: a device has memory of its own."
            raise Wrong(f"Writing to a shard changed {name}.", words)


def get_params(f: Callable[..., Any], backend: str | None = None) -> Report:
    """Grade `f(params, device)`, which returns copies with gradients attached."""
    B = get_backend(backend)
    sizes = [(k, count) for k in (1, 2, 3) for count in (1, 2, 3)]
    covers, words = "1 to 3 replicas, also on one device", "{:replica} of {:parameter}"
    return grade("get_params", covers, WHERE, partial(_copies, f, B), words, sizes)


def _copies(f: Callable[..., Any], B: Backend, k: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values = [rng.normal(size=(3 + i, 2)[: 1 + i % 2]) for i in range(count)]
    params = [B.array(v) for v in values]
    replicas = [called(f, params, device) for device in places(B, k)]
    for replica in replicas:
        if not isinstance(replica, tuple | list) or len(replica) != count:
            raise Wrong(f"Expected a list of {count} parameters, got {replica!r}.")
        compare([host(p, B) for p in replica], values, what="parameter {}")
    unchanged(B, params, values)
    separate(B, [*params, *sum(map(list, replicas), [])], SHARED)
    for replica in replicas:
        for p, v in zip(replica, values, strict=True):
            _has_gradient(B, p, v)


def _has_gradient(B: Backend, p: Any, v: np.ndarray) -> None:
    """Run a backward pass through a parameter, and compare its gradient."""
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


def train_batch(
    f: Callable[..., Any], model: str = "lenet", backend: str | None = None
) -> Report:
    """Grade `f(X, y, device_params, devices, lr)`, which takes one step of SGD.

    X (n, 1, 28, 28) and y (n,) for `lenet`. It must use the network `model` and the sum
    of the losses over the batch, divided by n, and update all replicas in place. All
    are compared with one device after each of two steps.
    """
    B = get_backend(backend)
    sizes = [(2, 1), (2, 2), (4, 2), (5, 2), (7, 3), (8, 4)]  # one more in step 2
    covers = "two steps on 1 to 4 devices, all replicas, also with uneven shards"
    run, words = partial(_step, f, B, model), "{:example} on {:device}"
    return grade("train_batch", covers, WHERE, run, words, sizes)


def _step(f: Callable[..., Any], B: Backend, model: str, n: int, k: int) -> None:
    network, rng = get_model(model), np.random.default_rng(0)
    start = network.initial(rng)
    local = places(B, k)
    replicas = [data.get_params([B.array(p) for p in start], d) for d in local]
    given = [[*params] for params in replicas]  # what is bound there, nobody else sees

    def gradient(
        params: list[np.ndarray], X: np.ndarray, y: np.ndarray, first: int, last: int
    ) -> list[np.ndarray]:
        (device,) = places(B, 1)
        one = data.get_params([B.array(p) for p in params], device)
        part = B.array(X[first:last]), B.array(y[first:last])
        data.train_batch(*part, [one], [device], 1.0, model=network, optimizer=SGD())
        new = [host(p, B) for p in one]
        return [(p - q) * (last - first) for p, q in zip(params, new, strict=True)]

    weights, before = start, [np.zeros_like(p) for p in start]
    for step, lr in ((1, 0.05), (2, 0.03)):
        X_values = rng.normal(size=(n, *_input_shape(model)))
        y_values = rng.integers(0, 10, n)
        X, y = B.array(X_values), B.array(y_values)
        called(f, X, y, given, local, lr)
        unchanged(B, (X, y), (X_values, y_values))
        batch = X_values, y_values
        shards = [gradient(weights, *batch, *cut) for cut in even_bounds(n, k)]
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
        both, momentum = (
            [a + rate * b for a, b in zip(total, before, strict=True)]
            for rate in (1, 0.9 * n / (n - 1))  # the step before had n - 1 examples
        )
        local_means = [
            [g / m for g in grads] for grads, m in zip(shards, lengths, strict=True)
        ]
        nothing = [np.zeros_like(p) for p in start]
        mistakes = [
            ("The gradient is not divided by the number of examples.",
             moved(total, by=lr)),
            ("A mean of means: each device divided by its own number of examples.",
             moved(means, by=lr)),
            ("The gradients were not summed over the devices.",
             moved(*shards, by=lr / n)),
            ("The gradients were not summed over the devices.",
             moved(*local_means, by=lr)),
            ("The gradient is summed, and divided by the examples of one device.",
             moved(total, by=lr * k / n)),
            ("The gradient is divided by the number of devices once more.",
             moved(total, by=lr / n / k)),
            ("No replica was updated in place.", moved(nothing, by=0)),
            ("Gradients of the step before were added: clear them first.",
             moved(both, by=lr / n)),
            ("The step before counts again: momentum is no part of this step.",
             moved(momentum, by=lr / n)),
            ("Only replica 0 was updated: the others got no sum, or a new tensor.",
             moved(total, *[nothing] * (k - 1), by=lr / n) if k > 1 else []),
            ("Gradient ascent: the update has the wrong sign.",
             moved(total, by=-lr / n)),
        ]  # fmt: skip
        got = [[host(p, B) for p in replica] for replica in replicas]
        right = moved(total, by=lr / n)
        what = f"step {step}, parameter {{}} of {len(start)} per replica"
        compare(sum(got, []), right, mistakes, what)
        same_bits(got)
        separate(B, [replica[0] for replica in replicas], SHARED)
        weights, before, n = right[: len(start)], total, n + 1


def _input_shape(model: str) -> tuple[int, ...]:
    return (1, 28, 28) if model == "lenet" else (784,)
