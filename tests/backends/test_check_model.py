"""The graders of model parallelism pass right functions, and name each mistake."""

import json

import numpy as np
import pytest
from book.notebooks import ROOT

import d2lmulti
from d2lmulti import check
from d2lmulti.backends.autograd import result
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.plans.schedules import SCHEDULES


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def numpy_and_torch(request):
    return request.param


# ---------------------------------------------------------------------- schedules, ZeRO


def test_schedules():
    def held(p, m, d):
        return min(p - d, m)

    def gpipe(p, m):
        return SCHEDULES["gpipe"](p, m)

    def one_forward_one_backward(p, m):
        return SCHEDULES["1f1b"](p, m)

    assert check.schedule(gpipe)
    assert check.schedule(one_forward_one_backward, held)
    assert "GPipe" in check.schedule(gpipe, held).mistake

    def without_the_last(p, m):
        return [own[:-2] + own[-1:] for own in gpipe(p, m)]

    def turned(p, m):
        return [own[:-1][::-1] + own[-1:] for own in gpipe(p, m)]

    assert not check.schedule(without_the_last)
    assert not check.schedule(turned)


def zero_bytes(order=(3, 2, 1), weights=2, grads=2, states=12):
    def f(parameters, devices, stage):
        shares = [1 / devices if stage >= first else 1 for first in order]
        parts = zip((weights, grads, states), shares, strict=True)
        return parameters * sum(size * share for size, share in parts)

    return f


@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (zero_bytes((1, 2, 3)), "another order"),
        (zero_bytes(states=8), "float32 weights"),
        (zero_bytes(weights=4, grads=4), "in float32"),
        (zero_bytes((0, 0, 0)), "at every stage"),
        (zero_bytes((4, 4, 4)), "Nothing is sharded"),
    ],
)
def test_zero(f, mistake):
    assert check.zero(zero_bytes())
    report = check.zero(f)
    assert not report and mistake in report.mistake, report


# ------------------------------------------------------ tensor_pair, ring_attention


def pair(combine, rows_first=False, relu=True):
    def f(X, W1, W2, devices):
        B, k = d2lmulti.backend_of(X), len(devices)
        X, W1, W2 = map(B.numpy, (X, W1, W2))
        act = (lambda x: np.maximum(x, 0)) if relu else (lambda x: x)
        if rows_first:
            cuts = even_bounds(X.shape[1], k)
            hidden = sum(act(X[:, a:b] @ W1[a:b]) for a, b in cuts)
            return [hidden @ W2] * k
        cuts = even_bounds(W1.shape[1], k)
        return combine([act(X @ W1[:, a:b]) @ W2[a:b] for a, b in cuts])

    return f


def all_sums(parts):
    return [sum(parts)] * len(parts)


@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (pair(lambda parts: parts), "partial sums"),
        (pair(lambda parts: [sum(parts), *parts[1:]]), "Only device 0"),
        (pair(all_sums, relu=False), "ReLU is missing"),
        (pair(lambda parts: [sum(parts) / len(parts)] * len(parts)), "mean"),
        (pair(all_sums, rows_first=True), "relu(a + b)"),
    ],
)
def test_tensor_pair(f, mistake, numpy_and_torch):
    assert check.tensor_pair(pair(all_sums), numpy_and_torch)
    report = check.tensor_pair(f, numpy_and_torch)
    assert not report and mistake in report.mistake, report


def operator(B, forward, backward):
    """Make an operator of the matrices, for k devices, with which it mixes tensors."""

    def mix(matrix):
        return lambda xs: tuple(
            sum(
                float(m) * B.copy_to(x, B.device_of(at))
                for m, x in zip(row, xs, strict=True)
            )
            for row, at in zip(matrix(len(xs)), xs, strict=True)
        )

    if B.name != "numpy":  # the chapter's own
        notebook = json.loads((ROOT / "chapters/tensor_parallel.ipynb").read_text())
        tabs = ["".join(c["source"]) for c in notebook["cells"]]
        (tab,) = [t for t in tabs if f"%%tab {B.name}" in t and "def identity" in t]
        names = {}
        exec(tab.partition("\n")[2], names)
        return names["operator"](mix(forward), mix(backward))

    def differentiable(*xs):
        notes = [
            [(x, lambda d, m=m: m * d) for x, m in zip(xs, column, strict=True)]
            for column in backward(len(xs)).T
        ]
        values = mix(forward)([B.detach(x) for x in xs])
        return [result(B.numpy(y), *own) for y, own in zip(values, notes, strict=True)]

    return differentiable


def one(k):
    return np.ones((k, k))


F, G = (np.eye, one), (one, np.eye)


@pytest.mark.parametrize(
    ("f", "g", "mistake"),
    [
        (F, F, "g does not add"),
        (G, G, "f adds in the forward pass"),
        ((np.eye, np.eye), G, "keeps only its own"),
        ((np.eye, lambda k: one(k) / k), G, "mean"),
        (F, (one, one), "once per device"),
        (F, (one, lambda k: 0 * one(k)), "g backward: it is zero"),
        (F, (np.eye, np.eye), "g does not add"),
    ],
)
def test_f_and_g_are_graded_in_both_passes(B, f, g, mistake):
    def graded(f, g):
        return check.tensor_pair(pair(all_sums), B.name, (f, g))

    right = graded(operator(B, *F), operator(B, *G))
    assert "f and g in both passes" in repr(right), right
    report = graded(operator(B, *f), operator(B, *g))
    assert not report and mistake in report.mistake, report

    def without_autograd(*xs):
        return [B.array(sum(map(B.numpy, xs)), B.device_of(x)) for x in xs]

    report = graded(operator(B, *F), without_autograd)
    assert "autograd" in report.mistake, report


def attention(
    causal=True, passed=True, rescale=True, scale=True, global_mask=True, ahead=0
):
    def f(Qs, Ks, Vs):
        B = d2lmulti.backend_of(Qs[0])
        Qs, Ks, Vs = ([B.numpy(x) for x in xs] for xs in (Qs, Ks, Vs))
        n, d = Qs[0].shape
        outputs = []
        for r, Q in enumerate(Qs):
            top, total = np.full((n, 1), -np.inf), np.zeros((n, 1))
            out, blocks = np.zeros((n, d)), range(len(Qs)) if passed else [r]
            for s in [r, *(b for b in blocks if b != r)]:
                S = Q @ Ks[s].T * (d**-0.5 if scale else 1)
                at = np.arange(n)
                rows, columns = (r * n + at, s * n + at) if global_mask else (at, at)
                if causal:
                    S = np.where(columns[None] > rows[:, None] + ahead, -np.inf, S)
                seen = np.isfinite(S).any(axis=1)[:, None]
                high = np.maximum(top, S.max(axis=1, keepdims=True))
                P = np.where(seen, np.exp(S - high), 0)
                if rescale:
                    old = np.exp(top - high)
                    out, total = out * old + P @ Vs[s], total * old + P.sum(1)[:, None]
                    top = high
                else:
                    P = np.where(seen, np.exp(S - S.max(1, keepdims=True)), 0)
                    out = out + np.where(
                        seen, P @ Vs[s] / np.maximum(P.sum(1)[:, None], 1e-9), 0
                    )
            outputs.append(out / total if rescale else out)
        return outputs

    return f


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("f", "mistake"),
    [
        (attention(passed=False), "own keys only"),
        (attention(rescale=False), "running maximum"),
        (attention(causal=False), "no causal mask"),
        (attention(scale=False), "sqrt(d)"),
        (attention(global_mask=False), "positions within a device"),
        (attention(ahead=1), "sees the next one"),
    ],
)
def test_ring_attention(f, mistake):
    assert check.ring_attention(attention(), backend="numpy")
    assert check.ring_attention(attention(causal=False), False, "numpy")
    report = check.ring_attention(f, backend="numpy")
    assert not report and mistake in report.mistake, report
