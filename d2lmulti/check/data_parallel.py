"""Graders for data parallelism: the batch, the replicas, the sums, and the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import Backend
from ..backends.tracking import track
from ..errors import PlanError
from ..models import get_model
from ..observe.ledger import ledger
from ..parallel import data
from ..plans.allreduce import ALLREDUCE
from ..plans.rounds import Round, even_bounds
from ..plans.verify import verify
from .compare import (
    CLOSE,
    compare,
    gradients,
    host,
    placed,
    places,
    same_bits,
    separate,
    unchanged,
    write_first,
    wrong_sums,
)
from .report import FORM, Count, Function, Report, Wrong, called, grade, listed, shown

WHERE = "Data Parallelism"
SHARED = "Replicas share memory: copying to the device where a tensor is, copies \
nothing. Each replica's update would reach all of them."
SUMS = "All-Reduce: Ring, Tree, and Hierarchical"
DROPPED = "Examples are dropped: the remainder, without which shards are equal."
SHAPES = [(1,), (2,), (5,), (7,), (3, 4)]
LARGE = (9, 12, 16)  # some rules hold up to 8 only


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
    X_values = np.random.default_rng([n, k]).normal(size=(n, 2, 3))
    y_values = np.arange(n) + k  # other labels in each call
    X, y = B.array(X_values), B.array(y_values)
    answer = listed(called(f, X, y, places(B, k)), "list")
    if len(answer) != 2:
        raise Wrong("Expected two lists, the shards of X and those of y.", FORM)
    X_shards, y_shards = (listed(shards, "shard") for shards in answer)
    unchanged((X, y), (X_values, y_values))
    Xs, ys = ([host(x) for x in shards] for shards in (X_shards, y_shards))
    longest = -(-n // k)
    if len(Xs) != k or len(ys) != k:
        words = "torch.chunk and np.array_split differ: chunk may return fewer shards."
        found = f"Expected {Count(k):shard}, got {len(Xs)} of X and {len(ys)} of y."
        raise Wrong(found, words if len(Xs) == -(-n // longest) else FORM)
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
        ends = np.minimum(np.arange(1, k + 1) * longest, n)
        uneven = "One device gets the whole remainder, and others wait."
        if lengths == [*np.diff(ends, prepend=0)]:
            uneven = "Shards of n / k examples, rounded up, leave too few for the last."
        raise Wrong(words, uneven)
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
    for shard in X_shards + y_shards:
        write_first(B, shard, -1)
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
    replicas = [
        listed(called(f, params, device), "parameter", count) for device in places(B, k)
    ]
    for replica in replicas:
        compare(replica, values, what="parameter {}")
    unchanged(params, values)
    given = {f"input {i}": p for i, p in enumerate(params)}
    separate(B, given | by_replica(replicas), SHARED)
    for p, v in ((p, v) for own in replicas for p, v in zip(own, values, strict=True)):
        words = "No gradient is attached, or the copy was made after it was."
        with B.record():
            loss = (p * p).sum()
        (grad,) = gradients(B, [loss], [p], words)
        if not np.allclose(grad, 2 * v):
            words = "The gradient is attached to another tensor than the copy."
            raise Wrong(f"Expected the gradient {2 * v}, got {grad}.", words)


def by_replica(replicas: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Name the parameters of replicas."""
    return {
        f"parameter {i} of replica {r}": p
        for r, replica in enumerate(replicas)
        for i, p in enumerate(replica)
    }


def vectors(n: int, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Return an array per rank; every sum of some of them is another number."""
    rng = np.random.default_rng([n, seed])
    return [rng.normal(size=shape) + 10.0 ** (rank % 6) for rank in range(n)]


def allreduce(f: Function, backend: str | None = None, algorithm: str = "") -> Report:
    """Grade `f(data)`, which sums a list of one tensor per device over the devices.

    It may write the sum into every tensor, return a list of sums, or return them
    stacked. Each device needs the same bits, in memory of its own. With an `algorithm`,
    such as `ring`, it may send no more messages than the library's, take no more
    rounds, and its busiest device send no more bytes. What is sent is counted as after
    `track_devices`, with Paddle only what `allreduce(data, plan)` sends.
    """
    B = get_backend(backend)
    cases = [(n, shape) for n in range(1, 8) for shape in SHAPES]
    cases += [(n, (17,)) for n in LARGE]
    covers = "1 to 7, 9, 12, and 16 devices, up to 17 elements, each twice"
    covers += f", messages and bytes of {algorithm}" if algorithm else ""
    words = "{:device}, shape {}"
    return grade("allreduce", covers, SUMS, words, cases, _sums, f, B, algorithm)


def _sums(f: Function, B: Backend, algorithm: str, n: int, shape: Any) -> None:
    for seed in (0, 1):
        counted = track(B.name) if algorithm else nullcontext()
        with second(seed), counted, ledger() as moved:
            _sum(f, B, n, shape, seed)
        # Ranks that share one of several GPUs are counted as one device.
        if not algorithm or n == 1 or 1 < B.gpu_count() < n:
            continue
        if not moved.bytes:
            words = "Tensors are copied outside the framework, or with Paddle: there, \
only `allreduce(data, plan)` is counted."
            raise Wrong("The ledger saw no message.", words)
        usual = [r for r in ALLREDUCE[algorithm](n, int(np.prod(shape))) if len(r)]
        sent, promised = max(moved.sent.values()), 8 * busiest(usual, n)
        _at_most(promised, "bytes from a device", sent, WHOLE)
        words = "Parts are sent more often than needed."
        _at_most(sum(map(len, usual)), "messages", moved.messages, words)
        if moved.rounds < moved.messages:
            _at_most(len(usual), "rounds", moved.rounds, TOGETHER)


@contextmanager
def second(seed: int) -> Iterator[None]:
    """Explain what is wrong in the second call only, which has another `seed`."""
    try:
        yield
    except Wrong as wrong:
        if seed and not wrong.mistakes:
            wrong.mistakes = ["The first call was right: something is kept from it."]
        raise


TOGETHER = "Transfers that could happen at once are in rounds of their own."
WHOLE = "One of them sends whole vectors or too long parts, or one time too often."


def _at_most(promised: int, what: str, got: int, words: str) -> None:
    if got > promised:
        raise Wrong(f"Expected at most {promised} {what}, got {got}.", words)


def busiest(rounds: Sequence[Round], ranks: int) -> int:
    """Count the elements that the busiest rank sends."""
    sent = np.zeros(ranks, int)
    for this_round in rounds:
        np.add.at(sent, this_round.source, this_round.length)
    return int(sent.max(initial=0))


def _sum(f: Function, B: Backend, n: int, shape: tuple[int, ...], seed: int) -> None:
    values = vectors(n, shape, seed)
    tensors = placed(B, values)
    data = [*tensors]
    answer = called(f, data)
    total = sum(values, np.zeros(shape))
    right = [total] * n
    summed = tensors if answer is None else listed(answer, "sum", n)
    got = [host(x) for x in summed]
    if answer is None and [*map(id, data)] != [*map(id, tensors)]:
        words = "Entries of the list were rebound: the devices' own tensors are as \
before."
        compare(got, right, [(words, [total, *values[1:]]), (words, values)])
    own = "Nothing was written: a new tensor, or a copy, has the sum."
    mistakes = wrong_sums(values, own)
    even = np.arange(total.size).reshape(shape) < total.size // n * n
    words = (
        "The last elements are left out: their number is no multiple of the devices."
    )
    mistakes.append((words, [np.where(even, total, x) for x in values]))
    if n > 1 and np.any([np.isclose(x, total, CLOSE, 0) for x in got], axis=0).all():
        words = "Each part of the sum is on some device, but not on all: the \
all-gather is missing, or ends too early."
        mistakes.append((words, got))
    compare(got, right, mistakes)
    same_bits([[x] for x in got])
    named = {f"the sum of device {i}": x for i, x in enumerate(summed)}
    separate(B, named, "Devices share one sum: a device has memory of its own.")


def reduce_scatter(f: Function, backend: str | None = None) -> Report:
    """Grade `f(data)`, which returns for each device its part of the sum.

    data: one vector per device, which it may write to. Device r gets the elements of
    part r of `even_bounds(elements, devices)`, and parts may be empty.
    """
    B = get_backend(backend)
    cases = [(n, length) for n in range(1, 8) for length in (1, 2, 4, 5, 7, 12)]
    cases += [(n, length) for n in LARGE for length in (5, 17)]
    covers = "1 to 7, 9, 12, and 16 devices, up to 17 elements, each twice"
    words = "{:device}, {:element}"
    return grade("reduce_scatter", covers, SUMS, words, cases, _parts, f, B)


def _parts(f: Function, B: Backend, n: int, length: int) -> None:
    bounds, ranks = even_bounds(length, n), range(n)
    short, long = length // n, -(-length // n)
    other_bounds = {
        "Each device has the part of its right neighbor.": bounds[1:] + bounds[:1],
        "Each device has the part of its left neighbor.": bounds[-1:] + bounds[:-1],
        "The parts are in reverse order.": bounds[::-1],
        "Every device has the whole sum: that is an all-reduce.": [(0, length)] * n,
        "The remainder is lost: it is no part.": [
            (r * short, (r + 1) * short) for r in ranks
        ],
        "The last device gets the whole remainder.": [
            (r * short, length if r == n - 1 else (r + 1) * short) for r in ranks
        ],
        "Parts of elements / devices, rounded up, leave too few for the last.": [
            (r * long, min((r + 1) * long, length)) for r in ranks
        ],
    }

    def parts(whole: Sequence[np.ndarray], cuts: Any = bounds) -> list[np.ndarray]:
        return [vector[a:b] for vector, (a, b) in zip(whole, cuts, strict=True)]

    for seed in (0, 1):
        values = vectors(n, (length,), seed)
        total = sum(values, np.zeros(length))
        padded = np.append(total, np.zeros(n * long - length))
        mistakes = [(words, parts([total] * n, b)) for words, b in other_bounds.items()]
        mistakes += [
            ("The zeros that pad the vector are parts, too.", np.split(padded, n)),
            ("Elements are dealt out in turns: a part has neighboring elements.",
             [total[r::n] for r in ranks]),
        ]  # fmt: skip
        own = "Each device kept its own values: nothing was summed."
        mistakes += [(words, parts(wrong)) for words, wrong in wrong_sums(values, own)]
        with second(seed):
            answer = listed(called(f, placed(B, values)), "part", n)
            got = [host(x).reshape(-1) for x in answer]
            compare(got, parts([total] * n), mistakes)


def plan(f: Function, algorithm: str = "") -> Report:
    """Grade `f(ranks, length)`, which yields the rounds of an all-reduce.

    The plan is verified as data. With an `algorithm`, such as `ring`, it must also take
    no more rounds than the library's, and its busiest rank send no more elements.
    """
    lengths = (0, 1, 2, 3, 7, 8, 16, 17)
    cases = [(n, length) for n in range(1, 9) for length in lengths]
    cases += [(n, length) for n in LARGE for length in (5, 17)]
    covers = "1 to 9, 12, and 16 ranks, up to 17 elements"
    covers += f", rounds and bytes of {algorithm}" if algorithm else ""
    words = "{:rank}, {:element}"
    name = f"plan {algorithm}".strip()
    return grade(name, covers, SUMS, words, cases, _planned, f, algorithm)


PLANS = {  # a part of what `verify` says, and the mistake
    "a second time": "A part is added again that the sum already holds.",
    "at the end": "A transfer is missing, or sends another part.",
    "two different ranks": "A rank sends to itself: one rank alone sends nothing.",
}


def _planned(f: Function, algorithm: str, n: int, length: int) -> None:
    found = listed(called(f, n, length), "round")
    for r in found:
        if not isinstance(r, Round):
            raise Wrong(f"Expected rounds of `make_round`, got {shown(r)}.", FORM)
    rounds = [r for r in found if len(r)]
    try:
        verify(rounds, n, length)
    except PlanError as error:
        words = [told for part, told in PLANS.items() if part in str(error)]
        raise Wrong(f"{error}.".replace("..", "."), *words) from error
    if algorithm:
        usual = [r for r in ALLREDUCE[algorithm](n, length) if len(r)]
        _at_most(len(usual), "rounds", len(rounds), TOGETHER)
        most, promised = busiest(rounds, n), busiest(usual, n)
        _at_most(promised, "elements from a rank", most, WHOLE)


def train_batch(
    f: Function, model: str = "lenet", backend: str | None = None
) -> Report:
    """Grade `f(X, y, device_params, devices, lr)`, which takes one step of SGD.

    X (n, 1, 28, 28) and y (n,) for `lenet`. It must use the network `model` and the sum
    of the losses over the batch, divided by n, and update all replicas in place. All
    are compared with one device after each of two steps.
    """
    B = get_backend(backend)
    sizes = [(2, 1), (2, 2), (4, 2), (5, 2), (7, 3), (8, 4), (6, 5)]  # step 2: n + 1
    covers = "two steps on 1 to 5 devices, all replicas, also with uneven shards"
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

    weights = flat(start)
    before = np.zeros_like(weights)
    for step, lr in ((1, 0.05), (2, 0.03)):
        size = (n, 1, 28, 28) if model == "lenet" else (n, 784)
        X_values, y_values = rng.normal(size=size), rng.integers(0, 10, n)
        X, y = B.array(X_values), B.array(y_values)
        called(f, X, y, given, local, lr)
        unchanged((X, y), (X_values, y_values))
        cuts = [slice(*bounds) for bounds in even_bounds(n, k)]
        shards = [gradient(weights, X_values[c], y_values[c]) for c in cuts]
        means = [g / (c.stop - c.start) for g, c in zip(shards, cuts, strict=True)]
        total, even = np.sum(shards, axis=0), n // k * k
        kept = total  # without the examples that make shards unequal
        if n > even:
            parts = np.split(np.arange(even), k)
            of_parts = [gradient(weights, X_values[c], y_values[c]) for c in parts]
            kept = np.sum(of_parts, axis=0)

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
            ("It is as many times too large as there are devices: divided by the \
examples of one device, or each computed the whole batch.",
             moved(total, by=lr * k / n)),
            (DROPPED, moved(kept, by=lr / n)),
            (DROPPED, moved(kept, by=lr / even)),
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
            ("The last replica was not updated.",
             moved(*[total] * (k - 1), 0, by=lr / n) if k > 1 else []),
            ("Every step has the learning rate of the first.",
             moved(total, by=0.05 / n)),
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
        separate(B, by_replica(replicas), SHARED)
        weights, before, n = weights - lr / n * total, total, n + 1
