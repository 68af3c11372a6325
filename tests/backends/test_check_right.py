"""The graders pass right functions: the library's own, and others."""

import os
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import d2lmulti
from d2lmulti import check
from d2lmulti.backends import backend_of
from d2lmulti.files import write_atomically
from d2lmulti.models.experts import (
    choose_experts,
    route_tokens,
    run_experts,
    take_rows,
)
from d2lmulti.parallel.sequence import ring_attention
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.training.rate import GradualWarmup

# ------------------------------------------------------------------- the library's own


def library_attention(attend, Qs, Ks, Vs):
    at = np.split(np.arange(sum(map(len, Qs))), len(Qs))
    parts = [[x.reshape((len(x), 1, -1)) for x in xs] for xs in (Qs, Ks, Vs)]
    outputs = attend(*parts, at).outputs
    return [out.reshape((len(out), -1)) for out in outputs]


def library_experts(Xs, router, W1, W2, capacity):
    B, n = backend_of(router), len(Xs)
    sent, kept, outs = [], [], []
    for x in Xs:
        choice = choose_experts(B, x, B.copy_to(router, B.device_of(x)))
        route = route_tokens(choice.expert, len(W1), capacity)
        sent.append(take_rows(B, x, route.token_of))
        kept.append((x, choice.gate, route.slot_of))
    d2lmulti.alltoall(sent)
    for r, x in enumerate(sent):
        own = slice(r * len(W1) // n, (r + 1) * len(W1) // n)
        own_W1, own_W2 = (B.copy_to(W[own], B.device_of(x)) for W in (W1, W2))
        outs.append(run_experts(B, own_W1, own_W2, x, n))
    d2lmulti.alltoall(outs)
    return [
        x + gate * take_rows(B, out, slot_of)
        for (x, gate, slot_of), out in zip(kept, outs, strict=True)
    ]


def library_resume(gradient, start, steps, path):
    B = backend_of(start)
    run = {"done": 0, "w": B.numpy(start), "v": 0 * B.numpy(start)}
    if os.path.exists(path):
        with np.load(path) as file:
            run = dict(file)
    for step in range(int(run["done"]), steps):
        v = 0.9 * run["v"] + B.numpy(gradient(B.array(run["w"]), step))
        run = {"done": step + 1, "w": run["w"] - 0.1 * v, "v": v}
        write_atomically(path, partial(np.savez, **run))
    return B.array(run["w"])


LIBRARY = {
    "split_batch": (check.split_batch, d2lmulti.split_batch),
    "get_params": (check.get_params, d2lmulti.get_params),
    "reduce_scatter": (check.reduce_scatter, d2lmulti.reduce_scatter),
    "train_batch": (check.train_batch, d2lmulti.train_batch),
    "ring attention": (
        check.ring_attention,
        partial(library_attention, ring_attention),
    ),
    "experts": (check.experts, library_experts),
    "resume": (check.resume, library_resume),
} | {
    f"{name} all-reduce": (
        partial(check.allreduce, algorithm=name),
        partial(d2lmulti.allreduce, algorithm=name),
    )
    for name in ALLREDUCE
}


@pytest.mark.parametrize("name", LIBRARY)
def test_the_librarys_functions(B, name):
    grader, f = LIBRARY[name]
    report = grader(f, backend=B.name)
    assert report, report


def test_the_librarys_plans_and_schedules():
    for name, f in ALLREDUCE.items():
        assert check.plan(f), name
        assert check.plan(f, name), name
    for name, f in SCHEDULES.items():
        two = name in ("interleaved", "zb_v")
        assert check.schedule(partial(f, chunks=2) if two else f), name
    assert check.schedule(SCHEDULES["1f1b"], lambda p, m, d: min(p - d, m))
    assert check.warmup(lambda i, lr, k, w: GradualWarmup(lr, w, k * lr).rate(i))


# ------------------------------------------------------------------ other ways to write


def split_through_numpy(X, y, devices):
    B = backend_of(X)
    return tuple(
        [B.array(part, d) for part, d in zip(parts, devices, strict=True)]
        for parts in (np.array_split(B.numpy(x), len(devices)) for x in (X, y))
    )


def copies_through_numpy(params, device):
    B = backend_of(params[0])
    copies = tuple(B.array(B.numpy(p).copy(), device) for p in params)
    for copy in copies:
        B.attach_grad(copy)
    return copies


def sums(data):
    B = backend_of(data[0])
    return [sum((B.numpy(x) for x in data[1:]), B.numpy(data[0])) for _ in data]


def sums_backward(data):
    B = backend_of(data[0])
    return [B.array(sum(B.numpy(y) for y in data[::-1]), B.device_of(x)) for x in data]


def parts_of_the_sum(data):
    B = backend_of(data[0])
    total = sum(B.numpy(x) for x in data)
    return tuple(np.array_split(total, len(data)))


def pair_stacked(X, W1, W2, devices):
    B = backend_of(X)
    return np.stack(
        [np.maximum(B.numpy(X) @ B.numpy(W1), 0) @ B.numpy(W2)] * len(devices)
    )


def attention_gathered(Qs, Ks, Vs):
    B = backend_of(Qs[0])
    Q, K, V = (np.concatenate([B.numpy(x) for x in xs]) for xs in (Qs, Ks, Vs))
    scores = np.where(np.tri(len(Q)) > 0, Q @ K.T / np.sqrt(Q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.split(weights / weights.sum(axis=1, keepdims=True) @ V, len(Qs))


def experts_by_slots(Xs, router, W1, W2, capacity):
    B, outs = backend_of(router), []
    router, W1, W2 = map(B.numpy, (router, W1, W2))
    for X in Xs:
        x = B.numpy(X)
        p = np.exp(x @ router - (x @ router).max(1, keepdims=True))
        p, out = p / p.sum(1, keepdims=True), x.copy()
        for e in range(len(W1)):
            own = np.flatnonzero(p.argmax(1) == e)[:capacity]
            out[own] += p[own, e : e + 1] * (np.maximum(x[own] @ W1[e], 0) @ W2[e])
        outs.append(out)
    return outs


def sampler_padded_at_random(n, ranks, rank, epoch):
    rng = np.random.default_rng(100 + epoch)
    order = [*rng.permutation(n), *rng.integers(0, n, -n % ranks)]
    return order[rank::ranks]


def rise(step, lr, devices, warmup_steps):
    return lr * (1 + (devices - 1) * min(step, warmup_steps) / warmup_steps)


def sixteen_bytes(parameters, devices, stage):
    kinds = zip((12, 2, 2), (1, 2, 3), strict=True)
    return sum(b * parameters / (devices if stage >= at else 1) for b, at in kinds)


def halves(p, m):
    return [[(what, d, k) for what in "FIW" for k in range(m)] for d in range(p)]


def resume_from_bytes(gradient, start, steps, path):
    B = backend_of(start)
    state = np.concatenate([[0.0], 0 * B.numpy(start), B.numpy(start)])
    if os.path.exists(path):
        with open(path, "rb") as file:
            state = np.frombuffer(file.read())
    done, (v, w) = int(state[0]), np.split(state[1:], 2)
    for step in range(done, steps):
        v = 0.9 * v + B.numpy(gradient(B.array(w), step))
        w = w - 0.1 * v
        with open(f"{path}.part", "wb") as file:
            file.write(np.concatenate([[step + 1.0], v, w]).tobytes())
        os.replace(f"{path}.part", path)
    return w


def split_recursively(X, y, devices):
    if len(devices) == 1:
        return split_through_numpy(X, y, devices)
    k = len(devices) // 2
    cut = even_bounds(len(X), len(devices))[k][0]
    first = split_recursively(X[:cut], y[:cut], devices[:k])
    others = split_recursively(X[cut:], y[cut:], devices[k:])
    return (own + other for own, other in zip(first, others, strict=True))


def sums_that_empty_the_list(data):
    B, total = backend_of(data[0]), sums(data)[0]
    while data:
        yield B.array(total, B.device_of(data.pop(0)))


def sums_rebound_and_returned(data):
    B, total = backend_of(data[0]), sums(data)[0]
    data[:] = [B.array(total, B.device_of(x)) for x in data]
    return data


class Sums:
    def __call__(self, data, *, root=-1):
        B, total = backend_of(data[root]), sums(data)[root]
        return {r: B.array(total, B.device_of(x)) for r, x in enumerate(data)}.values()


WAYS = [
    (check.split_batch, split_recursively),
    (
        check.get_params,
        lambda ps, d: map(lambda p: copies_through_numpy([p], d)[0], ps),
    ),
    (check.get_params, copies_through_numpy),
    (check.allreduce, sums_that_empty_the_list),
    (check.allreduce, sums_rebound_and_returned),
    (check.allreduce, partial(Sums(), root=0)),
    (check.allreduce, lambda data: np.stack(sums(data))),
    (check.allreduce, sums_backward),
    (check.reduce_scatter, lambda data: (part for part in parts_of_the_sum(data))),
    (check.tensor_pair, pair_stacked),
    (check.ring_attention, attention_gathered),
    (check.experts, lambda *args: iter(experts_by_slots(*args))),
    (check.resume, resume_from_bytes),
]
PURE = [
    (check.sampler, lambda *args: map(float, sampler_padded_at_random(*args))),
    (check.warmup, lambda *args: np.array(rise(*args))),
    (check.zero, lambda *args: Fraction(sixteen_bytes(*args))),
    (check.schedule, lambda p, m: dict(enumerate(halves(p, m))).values()),
]


@pytest.mark.parametrize("grader, f", WAYS, ids=range(len(WAYS)))
def test_right_ways(B, grader, f):
    report = grader(f, backend=B.name)
    assert report, report


@pytest.mark.parametrize("grader, f", PURE, ids=range(len(PURE)))
def test_right_ways_without_a_backend(grader, f):
    report = grader(f)
    assert report, report
