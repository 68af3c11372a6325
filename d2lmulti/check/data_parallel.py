"""Graders for data parallelism: the batch, the replicas, and the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..models import get_model
from ..parallel import data
from ..plans.rounds import even_bounds
from .compare import compare, gradients, host, places, same_bits, separate, unchanged
from .report import FORM, Function, Report, Wrong, called, grade

WHERE = "Data Parallelism"
SHARED = "Replicas share memory: copying to the device where a tensor is, copies \
nothing. Each replica's update would reach all of them."


def split_batch(f: Function, backend: str | None = None) -> Report:
    """Grade `f(X, y, devices)`, which returns lists of shards of X and of y.

    X (n, ...), y (n, ...). Every example must be on one device, with its own label and
    in order, and the numbers of examples may differ by one.
    """
    B = get_backend(backend)
    sizes = sorted((n, k) for k in range(1, 6) for n in range(k, 12))
    covers, words = "1 to 5 devices, up to 11 examples", "{:example} on {:device}"
    return grade("split_batch", covers, WHERE, words, sizes, _split, f, B)


def _split(f: Function, B: Backend, n: int, k: int) -> None:
    X_values = np.random.default_rng(n).normal(size=(n, 2, 3))
    y_values = np.arange(n)
    X, y = B.array(X_values), B.array(y_values)
    answer = called(f, X, y, places(B, k))
    unchanged((X, y), (X_values, y_values))
    if not (isinstance(answer, tuple | list) and len(answer) == 2):
        raise Wrong("Expected two lists, the shards of X and those of y.", FORM)
    Xs, ys = ([host(x) for x in shards] for shards in answer)
    if len(Xs) != k or len(ys) != k:
        words = "torch.chunk and np.array_split differ: chunk may return fewer shards."
        raise Wrong(f"Expected {k} shards, got {len(Xs)} and {len(ys)}.", words)
    lengths, right = [len(x) for x in Xs], [b - a for a, b in even_bounds(n, k)]
    if [len(y) for y in ys] != lengths:
        found = f"{lengths} examples with {[len(y) for y in ys]} labels"
        raise Wrong(f"Shards hold {found}.", "X and y are split in different ways.")
    words = f"Expected shards of {right} examples in some order, got {lengths}."
    if sum(lengths) < n:
        raise Wrong(words, "Examples are dropped: the remainder is lost.")
    if sum(lengths) > n:
        raise Wrong(words, "Some examples are on two devices, and count twice.")
    if max(lengths) - min(lengths) > 1:
        raise Wrong(words, "One device gets the whole remainder, and others wait.")
    for shards, values, name, moved in (
        (Xs, X_values, "X", "Examples changed places."),
        (ys, y_values, "y", "Labels left their examples."),
    ):
        together = np.concatenate(shards)
        if together.dtype != values.dtype:
            words = f"The dtype of {name} was changed."
            raise Wrong(
                f"Expected {name} in {values.dtype}, got {together.dtype}.", words
            )
        if together.shape != values.shape:
            found = f"Expected {name} of shape {values.shape} in shards"
            raise Wrong(f"{found}, got {together.shape}.", FORM)
        if not np.array_equal(together, values):
            raise Wrong(f"The shards together are not {name}.", moved)
    for shard, label in zip(*answer, strict=True):
        B.write_(shard, 0, 1, B.array(np.array([-1.0])))
        B.write_(label, 0, 1, B.array(np.array([-1])))
    for whole, values, name in ((X, X_values, "X"), (y, y_values, "y")):
        if not np.array_equal(host(whole), values):
            words = "A shard is a view of the batch: a device has memory of its own."
            raise Wrong(f"Writing to a shard changed {name}.", words)


def get_params(f: Function, backend: str | None = None) -> Report:
    """Grade `f(params, device)`, which returns copies with gradients attached."""
    B = get_backend(backend)
    sizes = [(k, count) for k in (1, 2, 3) for count in (1, 2, 3)]
    covers, words = "1 to 3 replicas, also on one device", "{:replica} of {:parameter}"
    return grade("get_params", covers, WHERE, words, sizes, _copies, f, B)


def _copies(f: Function, B: Backend, k: int, count: int) -> None:
    rng = np.random.default_rng(count)
    values = [rng.normal(size=(3 + i, 2)[: 1 + i % 2]) for i in range(count)]
    params = [B.array(v) for v in values]
    replicas = [called(f, params, device) for device in places(B, k)]
    for replica in replicas:
        if not isinstance(replica, tuple | list) or len(replica) != count:
            raise Wrong(f"Expected a list of {count} parameters, got {replica!r}.")
        compare(replica, values, what="parameter {}")
    unchanged(params, values)
    separate(B, [*params, *sum(map(list, replicas), [])], SHARED)
    for p, v in ((p, v) for own in replicas for p, v in zip(own, values, strict=True)):
        words = "No gradient is attached, or the copy was made after it was."
        with B.record():
            loss = (p * p).sum()
        (grad,) = gradients(B, [loss], [p], words)
        if not np.allclose(grad, 2 * v):
            words = "The gradient is attached to another tensor than the copy."
            raise Wrong(f"Expected the gradient {2 * v}, got {grad}.", words)


def train_batch(
    f: Function, model: str = "lenet", backend: str | None = None
) -> Report:
    """Grade `f(X, y, device_params, devices, lr)`, which takes one step of SGD.

    X (n, 1, 28, 28) and y (n,) for `lenet`. It must use the network `model` and the sum
    of the losses over the batch, divided by n, and update all replicas in place. All
    are compared with one device after each of two steps.
    """
    B = get_backend(backend)
    sizes = [(2, 1), (2, 2), (4, 2), (5, 2), (7, 3), (8, 4)]  # one more in step 2
    covers = "two steps on 1 to 4 devices, all replicas, also with uneven shards"
    words = "{:example} on {:device}"
    return grade("train_batch", covers, WHERE, words, sizes, _step, f, B, model)


def _step(f: Function, B: Backend, model: str, n: int, k: int) -> None:
    network, rng = get_model(model), np.random.default_rng(0)
    start, local = network.initial(rng), places(B, k)
    replicas = [data.get_params([B.array(p) for p in start], d) for d in local]
    given = [[*params] for params in replicas]  # what is bound there, nobody else sees
    ends = np.cumsum([p.size for p in start])[:-1]

    def flat(params: Any) -> np.ndarray:
        return np.concatenate([host(p).reshape(-1) for p in params])

    def shaped(*vectors: np.ndarray) -> list[np.ndarray]:
        """Return the parameters of each replica, all in one list."""
        parts = [part for v in vectors for part in np.split(v, ends)]
        shapes = [p.shape for p in start] * len(vectors)
        return [p.reshape(shape) for p, shape in zip(parts, shapes, strict=True)]

    def gradient(weights: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        params = data.get_params([B.array(p) for p in shaped(weights)], "cpu")
        with B.record():
            logits = network.forward(B, params, B.array(X))
            losses = B.cross_entropy(logits, B.array(y)).sum()
        return flat(gradients(B, [losses], params, ""))

    weights, before = flat(start), 0.0
    for step, lr in ((1, 0.05), (2, 0.03)):
        size = (n, 1, 28, 28) if model == "lenet" else (n, 784)
        X_values, y_values = rng.normal(size=size), rng.integers(0, 10, n)
        X, y = B.array(X_values), B.array(y_values)
        called(f, X, y, given, local, lr)
        unchanged((X, y), (X_values, y_values))
        cuts = [slice(*bounds) for bounds in even_bounds(n, k)]
        shards = [gradient(weights, X_values[c], y_values[c]) for c in cuts]
        means = [g / (c.stop - c.start) for g, c in zip(shards, cuts, strict=True)]
        total = np.sum(shards, axis=0)

        def moved(*grads: Any, by: float, old: np.ndarray = weights) -> Any:
            each = grads if len(grads) > 1 else grads * k
            return shaped(*(old - by * g for g in each))

        mistakes = [
            ("The gradient is not divided by the number of examples.",
             moved(total, by=lr)),
            ("A mean of means: each device divided by its own number of examples.",
             moved(sum(means), by=lr / k)),
            ("The gradients were not summed over the devices.",
             moved(*shards, by=lr / n)),
            ("The gradients were not summed over the devices.",
             moved(*means, by=lr)),
            ("The gradient is summed, and divided by the examples of one device.",
             moved(total, by=lr * k / n)),
            ("The gradient is divided by the number of devices once more.",
             moved(total, by=lr / n / k)),
            ("No replica was updated in place.", moved(0, by=0)),
            ("Gradients of the step before were added: clear them first.",
             moved(total + before, by=lr / n)),
            # the step before had n - 1 examples
            ("The step before counts again: momentum is no part of this step.",
             moved(total + 0.9 * n / (n - 1) * before, by=lr / n)),
            ("Only replica 0 was updated: the others got no sum, or a new tensor.",
             moved(total, *[0] * (k - 1), by=lr / n) if k > 1 else []),
            ("Gradient ascent: the update has the wrong sign.",
             moved(total, by=-lr / n)),
        ]  # fmt: skip
        got = [[host(p) for p in replica] for replica in replicas]
        names = [
            f"step {step}, replica {r}, parameter {i} of {len(start)}"
            for r in range(k)
            for i in range(len(start))
        ]
        compare(sum(got, []), moved(total, by=lr / n), mistakes, names)
        same_bits(got)
        separate(B, [replica[0] for replica in replicas], SHARED)
        weights, before, n = weights - lr / n * total, total, n + 1
