"""What a reader might write: right functions, of which mutants are made.

Every function stands alone, as in a notebook, and runs on each backend.
"""

import os

import numpy as np

from d2lmulti.backends import backend_of
from d2lmulti.models import get_model
from d2lmulti.plans.rounds import make_round


def split_batch(X, y, devices):
    B = backend_of(X)
    Xs, ys, first = [], [], 0
    each, more = divmod(len(X), len(devices))
    for i, device in enumerate(devices):
        last = first + each + (i < more)
        Xs.append(B.copy_to(X[first:last], device))
        ys.append(B.copy_to(y[first:last], device))
        first = last
    return Xs, ys


def get_params(params, device):
    copies = []
    for p in params:
        B = backend_of(p)
        copy = B.copy_to(B.detach(p), device)
        B.attach_grad(copy)
        copies.append(copy)
    return copies


def allreduce(data):
    B = backend_of(data[0])
    size = int(np.prod(data[0].shape))
    for x in data[1:]:
        B.write_(data[0], 0, size, B.copy_to(x, B.device_of(data[0])), add=True)
    for x in data[1:]:
        B.write_(x, 0, size, B.copy_to(data[0], B.device_of(x)))


def reduce_scatter(data):
    B, n = backend_of(data[0]), len(data)
    each, more = divmod(data[0].shape[0], n)
    parts, first = [], 0
    for r in range(n):
        last = first + each + (r < more)
        total = np.zeros(last - first)
        for x in data:
            total = total + B.numpy(x)[first:last]
        parts.append(B.array(total, B.device_of(data[r])))
        first = last
    return parts


def plan(ranks, length):
    edges = [r * length // ranks for r in range(ranks + 1)]
    for step in range(2 * ranks - 2):
        source, target, first, count = [], [], [], []
        for r in range(ranks):
            part = (r - step - 1) % ranks
            if edges[part + 1] > edges[part]:
                source.append(r)
                target.append((r + 1) % ranks)
                first.append(edges[part])
                count.append(edges[part + 1] - edges[part])
        yield make_round(source, target, first, count, add=step < ranks - 1)


def train_batch(X, y, device_params, devices, lr):
    B, network = backend_of(X), get_model("lenet")
    Xs, ys = split_batch(X, y, devices)
    for params in device_params:
        for p in params:
            B.clear_grad_(p)
    with B.record():
        losses = [
            B.cross_entropy(network.forward(B, params, X_i), y_i).sum()
            for params, X_i, y_i in zip(device_params, Xs, ys, strict=True)
        ]
    B.backward(losses)
    for same in zip(*device_params, strict=True):
        total = sum(B.numpy(B.grad(p)) for p in same)
        for p in same:
            new = B.numpy(p) - lr / len(X) * total
            with B.pause():
                B.write_(p, 0, new.size, B.array(new, B.device_of(p)))


def tensor_pair(X, W1, W2, devices):
    B, k = backend_of(X), len(devices)
    X, W1, W2 = B.numpy(X), B.numpy(W1), B.numpy(W2)
    width = W1.shape[1] // k
    total = np.zeros((X.shape[0], W2.shape[1]))
    for i in range(k):
        own = slice(i * width, (i + 1) * width)
        total = total + np.maximum(X @ W1[:, own], 0) @ W2[own]
    return [B.array(total, device) for device in devices]


def schedule(p, m):
    lists = []
    for d in range(p):
        order, f, b = [], 0, 0
        while b < m:
            if f < m and f - b < p - d:
                order.append(("F", d, f))
                f += 1
            else:
                order.append(("B", d, b))
                b += 1
        lists.append(order)
    return lists


def zero(parameters, devices, stage):
    states = 12 * parameters
    grads = 2 * parameters
    weights = 2 * parameters
    if stage >= 1:
        states = states / devices
    if stage >= 2:
        grads = grads / devices
    if stage >= 3:
        weights = weights / devices
    return states + grads + weights


def ring_attention(Qs, Ks, Vs):
    B, outs = backend_of(Qs[0]), []
    t, d = Qs[0].shape
    at = np.arange(t)
    for r in range(len(Qs)):
        q = B.numpy(Qs[r])
        top = np.full((t, 1), -1e30)
        total, mixed = np.zeros((t, 1)), np.zeros((t, d))
        for s in range(r, -1, -1):
            scores = q @ B.numpy(Ks[s]).T / d**0.5
            later = s * t + at[None, :] > r * t + at[:, None]
            scores = np.where(later, -1e30, scores)
            high = np.maximum(top, scores.max(axis=1, keepdims=True))
            fade, weights = np.exp(top - high), np.exp(scores - high)
            total = total * fade + weights.sum(axis=1, keepdims=True)
            mixed = mixed * fade + weights @ B.numpy(Vs[s])
            top = high
        outs.append(B.array(mixed / total, B.device_of(Qs[r])))
    return outs


def experts(Xs, router, W1, W2, capacity):
    B, outs = backend_of(router), []
    router, W1, W2 = B.numpy(router), B.numpy(W1), B.numpy(W2)
    for X in Xs:
        x = B.numpy(X)
        scores = x @ router
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p = p / p.sum(axis=1, keepdims=True)
        used, out = [0] * router.shape[1], x.copy()
        for t in range(len(x)):
            e = p[t].argmax()
            if used[e] < capacity:
                used[e] += 1
                out[t] += p[t, e] * (np.maximum(x[t] @ W1[e], 0) @ W2[e])
        outs.append(B.array(out, B.device_of(X)))
    return outs


def sampler(n, ranks, rank, epoch):
    order = np.random.default_rng(epoch).permutation(n)
    each = (n + ranks - 1) // ranks
    padded = np.resize(order, each * ranks)
    return padded[rank * each : (rank + 1) * each]


def warmup(step, lr, devices, warmup_steps):
    if step >= warmup_steps:
        return devices * lr
    return lr + (devices - 1) * lr * step / warmup_steps


def resume(gradient, start, steps, path):
    B = backend_of(start)
    w, v, done = start, start * 0, 0
    if os.path.exists(path):
        with np.load(path) as saved:
            w, v = B.array(saved["w"]), B.array(saved["v"])
            done = int(saved["done"])
    for step in range(done, steps):
        v = v * 0.9 + gradient(w, step)
        w = w - v * 0.1
        with open(path + ".new", "wb") as file:
            np.savez(file, w=B.numpy(w), v=B.numpy(v), done=step + 1)
        os.replace(path + ".new", path)
    return w


READERS = {
    f.__name__: f
    for f in (
        split_batch, get_params, allreduce, reduce_scatter, plan, train_batch,
        tensor_pair, schedule, zero, ring_attention, experts, sampler, warmup, resume,
    )
}  # fmt: skip
