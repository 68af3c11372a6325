"""The graders of data parallelism and collectives name mistakes that are no slips."""

from contextlib import nullcontext

import numpy as np
import pytest
from backends.readers import READERS

from d2lmulti import backend_of, check, track_devices
from d2lmulti.backends import get_backend
from d2lmulti.models import get_model
from d2lmulti.plans.allreduce import ring, star
from d2lmulti.plans.collectives import allgather, reduce_scatter
from d2lmulti.plans.rounds import even_bounds

# ------------------------------------------------------------------- data parallelism


def split(X, y, devices, dtype):
    B = backend_of(X)
    bounds = even_bounds(len(X), len(devices))
    Xs = [B.array(B.numpy(X)[a:b].astype(dtype)) for a, b in bounds]
    return Xs, [B.array(B.numpy(y)[a:b]) for a, b in bounds]


def test_shards_in_float32(B):
    assert check.split_batch(lambda *args: split(*args, "float64"), B.name)
    report = check.split_batch(lambda *args: split(*args, "float32"), B.name)
    assert "dtype of X" in report.mistake and "float32" in report.expected


def test_parameters_in_float32_or_shared_by_two_replicas(B):
    def copied(p, dtype="float64"):
        copy = B.array(B.numpy(p).astype(dtype))
        B.attach_grad(copy)
        return copy

    report = check.get_params(
        lambda params, device: [copied(p, "float32") for p in params], B.name
    )
    assert "float32" in report.mistake
    expected, _, got = report.expected.removesuffix(".").partition(", got ")
    assert expected.rpartition(" ")[2] != got  # enough digits to see it

    made = []  # replicas 1 and 2 are one, and replica 0 is not

    def two_of_three(params, device):
        if not made or made[0] is not params:
            made[:] = [params]
        if len(made) < 3:
            made.append([copied(p) for p in params])
        return made[-1]

    report = check.get_params(two_of_three, B.name)
    assert not report and "share memory" in report.mistake


def step(B, total_of, update):
    """Return `train_batch` with a sum of its own and an update of its own."""
    model = get_model("mlp")

    def train_batch(X, y, device_params, devices, lr):
        X, y, n = B.numpy(X), B.numpy(y), len(X)
        grads = []
        bounds = even_bounds(n, len(devices))
        for params, (a, b) in zip(device_params, bounds, strict=True):
            for p in params:
                B.clear_grad_(p)
            device = B.device_of(params[0])
            with B.record():
                logits = model.forward(B, params, B.array(X[a:b], device))
                loss = B.cross_entropy(logits, B.array(y[a:b], device)).sum()
            B.backward([loss])
            grads.append([B.numpy(B.grad(p)) for p in params])
        for r, params in enumerate(device_params):
            totals = [total_of(r, parts) / n for parts in zip(*grads, strict=True)]
            for i, total in enumerate(totals):
                update(params, i, total, lr)

    return train_batch


def in_place(params, i, total, lr):
    B = backend_of(params[i])
    device = B.device_of(params[i])
    with B.pause():
        moved = B.array(B.numpy(params[i]) - lr * total, device)
        B.write_(params[i], 0, total.size, moved)


def rebound(params, i, total, lr):
    B = backend_of(params[i])
    device = B.device_of(params[i])
    params[i] = B.array(B.numpy(params[i]) - lr * total, device)
    B.attach_grad(params[i])


def momentum():
    velocity = {}

    def update(params, i, total, lr):
        velocity[id(params[i])] = 0.9 * velocity.get(id(params[i]), 0) + total
        in_place(params, i, velocity[id(params[i])], lr)

    return update


def own_first(r, parts):
    return sum(parts[r:] + parts[:r])


def test_a_step_that_rebinds_drifts_or_remembers(B):
    def graded(*how):
        return check.train_batch(step(B, *how), "mlp", B.name)

    def from_the_first(r, parts):
        return sum(parts)

    assert graded(from_the_first, in_place)
    assert "updated in place" in graded(from_the_first, rebound).mistake
    assert "another order" in graded(own_first, in_place).mistake
    assert "momentum" in graded(from_the_first, momentum()).mistake


# ------------------------------------------------------------------------ collectives


def write_all(data, values, B):
    for x, value in zip(data, values, strict=True):
        flat = np.ascontiguousarray(value).reshape(-1)
        new = B.array(flat, B.device_of(x))
        B.write_(B.detach(x).reshape((-1,)), 0, flat.size, new)


def writes(change):
    def allreduce(data):
        B = backend_of(data[0])
        values = [B.numpy(x).copy() for x in data]
        write_all(data, change(sum(values), values), B)

    return allreduce


def rebinds(data):
    B = backend_of(data[0])
    total = B.array(sum(map(B.numpy, data)))
    for i in range(len(data)):
        data[i] = total


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
    report = check.allreduce(writes(change), "torch")
    assert not report and mistake in report.mistake, report


def test_a_rebound_entry_is_named(B):
    assert "rebound" in check.allreduce(rebinds, B.name).mistake


def test_sums_that_drift_or_are_one_tensor(B):
    def drifting(data):
        values = [B.numpy(x) for x in data]
        return [B.array(own_first(r, values)) for r in range(len(data))]

    def one(data):
        return [B.array(sum(B.numpy(x) for x in data))] * len(data)

    assert "another order" in check.allreduce(drifting, B.name).mistake
    assert "share one sum" in check.allreduce(one, B.name).mistake
    if B.name == "torch" and not B.gpu_count():

        def rebinds_storage(data):
            total = sum(x.clone() for x in data)
            for x in data:
                x.data = total

        assert "share one sum" in check.allreduce(rebinds_storage, "torch").mistake


def ring_of_copies(data, more=0):
    B, n = backend_of(data[0]), len(data)
    cuts = even_bounds(int(np.prod(data[0].shape)), n)
    for step in range(2 * n - 2 + more * (n > 1)):
        sent = []
        for r in range(n):
            part = cuts[(r - step + (step >= n - 1) * n) % n]
            target = B.device_of(data[(r + 1) % n])
            sent.append((part, B.copy_to(B.read(data[r], *part), target)))
        for r, (part, values) in enumerate(sent):
            B.write_(data[(r + 1) % n], *part, values, add=step < n - 1)


@pytest.mark.parametrize("tracked", [False, True])
def test_a_ring_of_copies_may_be_called_ring(B, tracked):
    if B.name == "paddle":
        pytest.skip("its copies are not counted")
    with track_devices(B.name) if tracked else nullcontext():
        assert check.allreduce(ring_of_copies, B.name, "ring")
        report = check.allreduce(lambda d: ring_of_copies(d, 1), B.name, "ring")
    assert (
        not report and "Parts are sent" in report.mistake or "bytes" in report.expected
    )


def test_a_gather_that_adds():
    def adds(ranks, length):
        yield from reduce_scatter(ranks, length)
        for this_round in allgather(ranks, length):
            yield type(this_round)(*this_round.columns[:-1], this_round.add | True)

    assert "added again" in check.plan(adds).mistake
    assert "whole vectors" in check.plan(star, "ring").mistake


# ----------------------------------------------- 5 or 7 devices, and what is remembered


def test_what_is_wrong_for_5_or_7_devices_only(B):
    def sums(data):
        few = data[: 6 if len(data) == 7 else len(data)]
        return [B.array(sum(map(B.numpy, few))) for _ in data]

    def parts(data):
        return [
            B.numpy(x)[a:b]
            for x, (a, b) in zip(
                sums(data), even_bounds(len(data[0]), len(data)), strict=True
            )
        ]

    def layer(Xs, router, W1, W2, capacity):
        more = capacity + (len(Xs) == 5)
        return READERS["experts"](Xs, router, W1, W2, more)

    def update(params, i, total, lr):
        in_place(params, i, total, lr)

    def total_of(r, gradients):
        return sum(gradients) * (2 if len(gradients) == 5 else 1)

    reports = [
        check.allreduce(sums, B.name),
        check.reduce_scatter(parts, B.name),
        check.experts(layer, B.name),
        check.train_batch(step(B, total_of, update), "mlp", B.name),
    ]
    for report, number in zip(reports, "7755", strict=True):
        assert f"{number} devices" in report.failed, report


def test_one_token_on_a_device(B):
    def layer(Xs, *others):
        outs = READERS["experts"](Xs, *others)
        return [x if len(x) == 1 else out for x, out in zip(Xs, outs, strict=True)]

    assert "3 tokens" in check.experts(layer, B.name).failed


def test_what_is_kept_for_the_next_call(B):
    batches, sums = {}, {}

    def same_batch(X, y, devices):
        X, y = batches.setdefault(len(X), (B.numpy(X), B.numpy(y)))
        return split(B.array(X), B.array(y), devices, "float64")

    def added_up(data):
        total = sum(map(B.numpy, data))
        key = len(data), total.shape
        sums[key] = sums.get(key, 0) + total
        return [B.array(sums[key]) for _ in data]

    def same_output(X, W1, W2, devices):
        key = X.shape, W1.shape
        out, *_ = READERS["tensor_pair"](X, W1, W2, devices)
        return [B.array(sums.setdefault(key, B.numpy(out))) for _ in devices]

    assert not check.tensor_pair(same_output, B.name)
    assert "changed places" in check.split_batch(same_batch, B.name).mistake
    assert "is kept" in check.allreduce(added_up, B.name).mistake


def test_a_list_of_the_caller_that_is_emptied(B):
    def copies(params, device):
        right = READERS["get_params"](params, device)
        params.clear()
        return right

    assert "changed a list" in check.get_params(copies, B.name).mistake


def test_views_in_a_generator_and_shared_later_parameters():
    def views(X, y, devices):
        bounds = even_bounds(len(X), len(devices))
        return ([z[a:b] for a, b in bounds] for z in (X, y))

    assert "is a view" in check.split_batch(views, "torch").mistake
    B = get_backend("numpy")
    right = step(B, lambda r, parts: sum(parts), in_place)

    def shares_the_last(X, y, device_params, devices, lr):
        right(X, y, device_params, devices, lr)
        for params in device_params[1:]:
            params[-1].value = device_params[0][-1].value

    report = check.train_batch(shares_the_last, "mlp", "numpy")
    assert "share memory" in report.mistake and "parameter 3" in report.expected


# ------------------------------------------------------------------- more than 8 ranks


def test_what_is_wrong_above_8_ranks_only(B):
    def few(data):
        return sum(B.numpy(x) for x in data[:8])

    def sums(data):
        return [B.array(few(data)) for _ in data]

    def parts(data):
        return [few(data)[a:b] for a, b in even_bounds(len(data[0]), len(data))]

    reports = [check.allreduce(sums, B.name), check.reduce_scatter(parts, B.name)]
    reports.append(check.plan(lambda n, length: ring(n, length) if n < 9 else ()))
    assert ["9 " in r.failed for r in reports] == [True] * 3, reports


# ------------------------------------- what the first failure alone would name wrongly


def test_a_kind_of_mistake_must_explain_a_second_failure(B):
    def largest(data):
        return [np.max([B.numpy(x) for x in data], axis=0) for _ in data]

    def mistake(f):
        return check.allreduce(f, B.name).mistake

    def divided(data):
        values = [B.numpy(x) for x in data]
        even = values[0].size // len(data) * len(data)
        total = [x.copy() for x in values]
        for x in total:
            x.reshape(-1)[:even] = sum(values).reshape(-1)[:even]
        return total

    def not_gathered(data):
        values = [B.numpy(x).copy() for x in data]
        total = sum(values).reshape(-1)
        for x, (a, b) in zip(values, even_bounds(total.size, len(data)), strict=True):
            x.reshape(-1)[a:b] = total[a:b]
        return values

    def second(data):  # of two devices, the sum without device 0's own values
        return [B.numpy(data[-1] if len(data) < 3 else data[1]) for _ in data]

    assert mistake(second).startswith("Perhaps")
    assert "maximum" in mistake(largest)
    assert "no multiple" in mistake(divided)
    assert "all-gather" in mistake(not_gathered)


def test_shards_of_another_form():
    def flattened(X, y, devices):
        Xs, ys = split(X, y, devices, "float64")
        return [x.reshape((len(x), -1)) for x in Xs], ys

    assert "another form" in check.split_batch(flattened, "numpy").mistake
