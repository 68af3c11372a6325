"""The graders of data parallelism pass right functions, and name each mistake."""

import numpy as np
import pytest

import d2lmulti
from d2lmulti import check
from d2lmulti.backends import get_backend
from d2lmulti.models import get_model
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import even_bounds


@pytest.fixture
def name(B):
    return B.name


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def numpy_and_torch(request):
    return request.param


def losses_of(B, params, X, y):
    """The sum of the losses of LeNet, as a reader would compute it."""
    model = get_model("lenet")
    return B.cross_entropy(model.forward(B, params, X), y).sum()


# ---------------------------------------------------------------------- split_batch


def split_by(cuts):
    def split(X, y, devices):
        bounds = cuts(len(X), len(devices))
        B = d2lmulti.backend_of(X)
        parts = [(B.copy_to(X[a:b], d), B.copy_to(y[a:b], d))
                 for (a, b), d in zip(bounds, devices, strict=False)]  # fmt: skip
        return [x for x, _ in parts], [y for _, y in parts]

    return split


def ceil_cuts(n, k):  # torch.chunk
    size = -(-n // k)
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def late_cuts(n, k):  # the longer shards last
    edges = [i * n // k for i in range(k + 1)]
    return list(zip(edges[:-1], edges[1:], strict=True))


def floor_cuts(n, k):
    return [(i * (n // k), (i + 1) * (n // k)) for i in range(k)]


def rest_to_last(n, k):
    cuts = floor_cuts(n, k)
    return [*cuts[:-1], (cuts[-1][0], n)]


def overlapping(n, k):
    size = -(-n // k)
    return [(min(i * size, n - size), min(i * size, n - size) + size) for i in range(k)]


@pytest.mark.parametrize("cuts", [even_bounds, late_cuts])
def test_right_ways_to_split_a_batch(cuts, name):
    report = check.split_batch(split_by(cuts), name)
    assert report and report.checked == 45
    assert "right in 45 cases" in repr(report)


def as_views(X, y, devices):
    cuts = even_bounds(len(X), len(devices))
    return [X[a:b] for a, b in cuts], [y[a:b] for a, b in cuts]


@pytest.mark.parametrize(
    ("split", "mistake"),
    [
        (split_by(ceil_cuts), "chunk may return fewer"),
        (split_by(floor_cuts), "the remainder is lost"),
        (split_by(rest_to_last), "whole remainder"),
        (split_by(overlapping), "count twice"),
        (lambda X, y, devices: None, ""),
        (lambda X, y, devices: 1 / 0, "line"),
    ],
)
def test_wrong_ways_to_split_a_batch(split, mistake, name):
    report = check.split_batch(split, name)
    assert not report and mistake in report.mistake
    assert len(repr(report).splitlines()) == 3


def test_a_shard_that_is_a_view_is_found():
    assert "view of the batch" in check.split_batch(as_views, "torch").mistake
    flipped = check.split_batch(
        lambda X, y, d: (lambda a, b: (a, [t.flip(0) for t in b]))(
            *split_by(even_bounds)(X, y, d)
        ),
        "torch",
    )
    assert "Labels left" in flipped.mistake


# ----------------------------------------------------------------------- get_params


def test_get_params(name):
    assert check.get_params(d2lmulti.get_params, name)
    B = get_backend(name)

    def without_gradient(params, device):
        return [B.copy_to(p, device) for p in params]

    def same_tensor(params, device):
        for p in params:
            B.attach_grad(p)
        return list(params)

    assert "shares memory" in check.get_params(same_tensor, name).mistake.replace(
        "Replicas share", "shares"
    )
    report = check.get_params(without_gradient, name)
    assert not report and "gradient" in report.mistake.lower()
    assert not check.get_params(lambda params, device: params[:0], name)


# ------------------------------------------------------------------------ allreduce


def total_of(data, B):
    return sum((B.numpy(x) for x in data[1:]), B.numpy(data[0]).copy())


def write_all(data, values, B):
    for x, value in zip(data, values, strict=True):
        flat = np.ascontiguousarray(value).reshape(-1)
        new = B.array(flat, B.device_of(x))
        B.write_(B.detach(x).reshape((-1,)), 0, flat.size, new)


def in_place(change):
    def allreduce(data):
        B = d2lmulti.backend_of(data[0])
        values = [B.numpy(x).copy() for x in data]
        write_all(data, change(sum(values), values), B)

    return allreduce


def returned(data):
    B = d2lmulti.backend_of(data[0])
    return [total_of(data, B) for _ in data]


def stacked(data):
    return np.stack(returned(data))


def rebound(data):
    B = d2lmulti.backend_of(data[0])
    total = B.array(total_of(data, B))
    for i in range(len(data)):
        data[i] = total


@pytest.mark.parametrize(
    "f",
    [
        returned,
        stacked,
        *(lambda data, a=a: d2lmulti.allreduce(data, a) for a in ALLREDUCE),
    ],
    ids=["returned", "stacked", *ALLREDUCE],
)
def test_right_all_reduces(f, numpy_and_torch):
    assert check.allreduce(f, numpy_and_torch)


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (lambda s, v: [s, *v[1:]], "not sent back"),
        (lambda s, v: v, "Nothing was written"),
        (lambda s, v: [s / len(v)] * len(v), "mean"),
        (lambda s, v: [s - v[0]] * len(v), "own values are missing"),
        (lambda s, v: [s + v[0]] * len(v), "twice"),
        (lambda s, v: [s - v[-1]] * len(v), "are missing"),
        (lambda s, v: [x + v[i - 1] for i, x in enumerate(v)], "left neighbor"),
        (lambda s, v: list(np.cumsum(v, axis=0)), "read while others wrote"),
    ],
)
def test_wrong_all_reduces(change, mistake):
    report = check.allreduce(in_place(change), "torch")
    assert not report and mistake in report.mistake, report


def test_a_rebound_entry_is_named(name):
    assert "rebound" in check.allreduce(rebound, name).mistake


# ---------------------------------------------------------------------- train_batch


def step(change=None, share=even_bounds, scale=None, clear=True):
    """A reader's train_batch, with a place for each mistake."""

    def train_batch(X, y, device_params, devices, lr):
        B, n, k = d2lmulti.backend_of(X), len(X), len(devices)
        Xs, ys = split_by(share)(X, y, devices)
        if clear:
            for params in device_params:
                for p in params:
                    B.clear_grad_(p)
        with B.record():
            losses = [
                losses_of(B, params, *part)
                for params, part in zip(
                    device_params, zip(Xs, ys, strict=True), strict=True
                )
            ]
        B.backward(losses)
        for same in zip(*device_params, strict=True):
            grads = [B.numpy(B.grad(p)).copy() for p in same]
            lengths = [len(x) for x in Xs]
            used = [sum(grads)] * k if change is None else change(grads, lengths)
            by = lr * (1 / n if scale is None else scale(n, k))
            for p, g in zip(same, used, strict=True):
                new = B.array((B.numpy(p) - by * g).reshape(-1), B.device_of(p))
                with B.pause():
                    B.write_(B.detach(p).reshape((-1,)), 0, g.size, new)

    return train_batch


def test_right_steps(numpy_and_torch):
    assert check.train_batch(step(), backend=numpy_and_torch)
    assert check.train_batch(step(share=late_cuts), backend=numpy_and_torch)
    assert check.train_batch(d2lmulti.train_batch, backend=numpy_and_torch)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (step(scale=lambda n, k: 1.0), "not divided by the number of examples"),
        (
            step(
                lambda g, m: (
                    [sum(a / b for a, b in zip(g, m, strict=True)) / len(g)] * len(g)
                ),
                scale=lambda n, k: 1.0,
            ),
            "mean of means",
        ),
        (step(lambda g, m: g), "not summed"),
        (step(scale=lambda n, k: k / n), "of one device"),
        (step(scale=lambda n, k: 1 / n / k), "once more"),
        (step(lambda g, m: [0 * x for x in g]), "No replica"),
        (step(clear=False), "clear them first"),
        (step(lambda g, m: [sum(g), *(0 * x for x in g[1:])]), "Only replica 0"),
        (step(scale=lambda n, k: -1 / n), "wrong sign"),
        (step(share=floor_cuts), ""),
    ],
)
def test_wrong_steps(wrong, mistake):
    report = check.train_batch(wrong, backend="torch")
    assert not report and mistake in report.mistake, report


# ------------------------------------------------------------------- reduce_scatter


def test_reduce_scatter(name):
    assert check.reduce_scatter(d2lmulti.reduce_scatter, name)
    B = get_backend(name)

    def parts(vector, shift=0):
        def f(data):
            bounds = even_bounds(len(data[0]), len(data))
            values = [B.numpy(x) for x in data]
            cuts = [bounds[(r + shift) % len(data)] for r in range(len(data))]
            return [vector(values, r)[a:b] for r, (a, b) in enumerate(cuts)]

        return f

    wrong = {
        "nothing was summed": parts(lambda values, r: values[r]),
        "right neighbor": parts(lambda values, r: sum(values), 1),
        "mean": parts(lambda values, r: sum(values) / len(values)),
        "all-reduce": lambda data: [sum(map(B.numpy, data))] * len(data),
    }
    for mistake, f in wrong.items():
        assert mistake in check.reduce_scatter(f, name).mistake


# -------------------------------------------------------------------------------- plans


def test_plans():
    for algorithm, rounds in ALLREDUCE.items():
        assert check.plan(rounds), algorithm
        assert check.plan(rounds, algorithm), algorithm
    whole = check.plan(ALLREDUCE["star"], "ring")
    assert "whole vectors" in whole.mistake
    short = check.plan(lambda n, length: [*ALLREDUCE["ring"](n, length)][:-1])
    assert not short and "rank" in short.expected


# --------------------------------------------------------------------- sampler, warm-up


def drawn(n, ranks, rank, epoch):
    order = np.random.default_rng(epoch).permutation(n)
    size = -(-n // ranks)
    return np.resize(order, size * ranks)[rank::ranks]


def in_blocks(n, ranks, rank, epoch):
    order = np.random.default_rng(epoch).permutation(n)
    size = -(-n // ranks)
    return np.resize(order, size * ranks)[rank * size : (rank + 1) * size]


@pytest.mark.parametrize("f", [drawn, in_blocks])
def test_right_samplers(f):
    assert check.sampler(f)


@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (lambda n, k, r, e: drawn(n, k, r, 0), "set_epoch"),
        (lambda n, k, r, e: drawn(n, 1, 0, e), "all data"),
        (lambda n, k, r, e: drawn(n, k, r, e)[: n // k], "dropped"),
        (lambda n, k, r, e: drawn(n, k, r, 100 * e + r), "different orders"),
        (lambda n, k, r, e: np.random.default_rng(e).permutation(n)[r::k], "waits"),
        (lambda n, k, r, e: np.random.permutation(n)[r::k], "not seeded"),
    ],
)
def test_wrong_samplers(f, mistake):
    report = check.sampler(f)
    assert not report and mistake in report.mistake, report


def ramp(step, lr, devices, warmup_steps):
    return lr + (devices - 1) * lr * min(step, warmup_steps) / warmup_steps


@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (lambda i, lr, k, w: lr, "not scaled"),
        (lambda i, lr, k, w: k * lr, "no warm-up"),
        (lambda i, lr, k, w: k * lr * min(i / w, 1), "starts at 0"),
        (lambda i, lr, k, w: ramp(i, lr, k**0.5, w), "sqrt"),
        (lambda i, lr, k, w: ramp(min(i + 1, w), lr, k, w), "one step early"),
        (lambda i, lr, k, w: lr + (k - 1) * lr * i / w, "goes on"),
    ],
)
def test_warm_ups(f, mistake):
    assert check.warmup(ramp)
    report = check.warmup(f)
    assert not report and mistake in report.mistake, report
