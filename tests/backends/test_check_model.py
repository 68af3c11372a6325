"""The graders of models and resuming name mistakes; answers may have any form."""

import json
import os
import queue
import shutil
import signal
import threading

import numpy as np
import pytest
from backends.readers import READERS
from book.notebooks import ROOT

from d2lmulti import check
from d2lmulti.backends import get_backend
from d2lmulti.backends.autograd import result
from d2lmulti.check import report as reports
from d2lmulti.plans.allreduce import ring
from d2lmulti.plans.schedules import gpipe, one_f_one_b

# -------------------------------------------------------------------- model and tokens


def tuples(order):
    return [[(type(i).__name__[0], i.stage, i.micro) for i in own] for own in order]


def test_lists_of_lists_and_a_missing_instruction():
    def lists(p, m):
        return [[[*i] for i in own] for own in tuples(one_f_one_b(p, m))]

    def lacks_the_first(p, m):
        first, *others = tuples(gpipe(p, m))
        return [first[1:], *others]

    assert check.schedule(lists)
    assert "missing" in check.schedule(lacks_the_first).mistake


def later(at, own):
    return at > at[:, None]


def attention(B, scale, stable=True, hidden=later):
    def attend(Qs, Ks, Vs):
        Q, K, V = (np.concatenate([B.numpy(x) for x in xs]) for xs in (Qs, Ks, Vs))
        scores = Q @ K.T * scale(Q.shape[1])
        scores[hidden(np.arange(len(Q)), len(Qs[0]))] = -np.inf
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(scores - scores.max(axis=1, keepdims=True) * stable)
            out = weights @ V / weights.sum(axis=1, keepdims=True)
        return [B.array(x) for x in np.split(out, len(Qs))]

    return attend


def test_attention_for_one_size_or_small_scores(B):
    def graded(*how):
        return check.ring_attention(attention(B, *how), backend=B.name)

    assert not graded(lambda d: 3**-0.5)
    assert "overflowed" in graded(lambda d: d**-0.5, False).mistake


@pytest.mark.parametrize(
    ("hidden", "mistake"),
    [
        (lambda at, own: at < 0 * at[:, None], "no causal mask"),
        (lambda at, own: at > at[:, None] + 1, "sees the next one"),
        (lambda at, own: at % own > at[:, None] % own, "positions within a device"),
    ],
)
def test_masks(hidden, mistake):
    f = attention(get_backend("numpy"), lambda d: d**-0.5, hidden=hidden)
    assert mistake in check.ring_attention(f, backend="numpy").mistake
    assert bool(check.ring_attention(f, False, "numpy")) == ("no" in mistake.split())


def test_float32_is_legitimate_for_a_rate_and_for_bytes():
    def rate(step, lr, devices, warmup_steps):
        share = min(step / warmup_steps, 1)
        return np.float32(lr) * np.float32(1 + (devices - 1) * share)

    def late(step, lr, devices, warmup_steps):
        return rate(max(step - 1, 0), lr, devices, warmup_steps)

    def zero(parameters, devices, stage):
        sharded = [stage >= first for first in (3, 2, 1)]
        shares = [
            b / devices if s else b for b, s in zip((2, 2, 12), sharded, strict=True)
        ]
        return np.float32(parameters * sum(shares))

    assert check.warmup(rate) and check.zero(zero)
    assert "late" in check.warmup(late).mistake


# ------------------------------------------------------------ f and g of a tensor pair


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
    def graded(*operators):
        return check.tensor_pair(READERS["tensor_pair"], B.name, operators)

    right = graded(operator(B, *F), operator(B, *G))
    assert "f and g in both passes" in repr(right), right
    report = graded(operator(B, *f), operator(B, *g))
    assert not report and mistake in report.mistake, report

    def without_autograd(*xs):
        return [B.array(sum(map(B.numpy, xs)), B.device_of(x)) for x in xs]

    report = graded(operator(B, *F), without_autograd)
    assert "autograd" in report.mistake, report


# ----------------------------------------------------------------------------- resume


def run_with(B, save, state):
    """Return a run that saves in some way and takes what it continues from `state`."""
    memory = {}

    def run(gradient, start, steps, path):
        w, v, done = B.numpy(start), np.zeros(3), 0
        if os.path.exists(path):
            with np.load(path) as file:
                w, v, done = state(file, memory)
        for i in range(done, steps):
            v = 0.9 * v + B.numpy(gradient(B.array(w), i))
            w = w - 0.1 * v
            memory.update(w=w, v=v, done=i + 1)
            save(path, memory)
        return B.array(w)

    return run


def from_file(file, memory):
    return file["w"], file["v"], int(file["done"])


def replace(path, values):
    np.savez(path + ".new.npz", **values)
    os.replace(path + ".new.npz", path)


def remove_first(path, values):
    if os.path.exists(path):
        os.remove(path)
    replace(path, values)


def copy_over(path, values):
    np.savez(path + ".new.npz", **values)
    shutil.copy(path + ".new.npz", path)


@pytest.mark.parametrize(
    ("save", "state", "mistake"),
    [
        (remove_first, from_file, "before the new one is there"),
        (copy_over, from_file, "in place"),
        (
            replace,
            lambda file, memory: (file["w"], memory["v"], int(file["done"])),
            "velocity is kept in memory",
        ),
        (
            replace,
            lambda file, memory: (memory["w"], memory["v"], memory["done"]),
            "another run was continued",
        ),
    ],
)
def test_a_state_that_a_crash_loses(B, save, state, mistake):
    assert check.resume(run_with(B, replace, from_file), B.name)
    assert mistake in check.resume(run_with(B, save, state), B.name).mistake


def test_a_run_that_writes_to_its_start():
    B = get_backend("numpy")
    run = run_with(B, replace, from_file)

    def writes(gradient, start, steps, path):
        w = run(gradient, start, steps, path)
        B.write_(start, 0, 3, w)
        return w

    assert "wrote to an input" in check.resume(writes, "numpy").mistake


def test_an_error_names_the_readers_line_or_the_arguments():
    def deep(step, lr, devices, warmup_steps):
        return np.linalg.inv(np.zeros((2, 2)))  # raises inside NumPy

    assert "inv(np.zeros" in check.warmup(deep).mistake
    report = check.warmup(lambda step, lr: lr)
    assert "TypeError" in report.expected and "other arguments" in report.mistake


def test_an_error_in_a_generator_names_its_line():
    def stops(ranks, length):
        yield from ring(ranks, length)
        yield [][ranks]

    assert "yield [][ranks]" in check.plan(stops).mistake


def test_an_error_of_many_lines_takes_one(B):
    def fails(*arguments):
        raise ValueError("one\ntwo\nthree")

    report = check.tensor_pair(fails, B.name)
    assert len(repr(report).splitlines()) == 3 and "ValueError: one." in repr(report)


# --------------------------------------------------------------- answers of other forms


def answers():
    yield None
    yield 7
    yield "done"
    yield object()
    yield [None]
    yield ["a", "b"]
    yield [[1.0], [2.0]]
    yield {"x": 1}
    yield [np.array([1j])]


def raises_later():
    yield np.zeros(3)
    raise KeyError("later")


@pytest.mark.parametrize("name", READERS)
def test_another_form_is_shown_in_three_lines(name):
    def graded(make):
        return getattr(check, name)(lambda *arguments: make())

    makes = [lambda answer=answer: answer for answer in answers()]
    for make in (*makes, raises_later, lambda: exit("bye")):
        report = graded(make)
        text = repr(report)
        assert not report and len(text.splitlines()) == 3
        assert "has no attribute" not in text and "iterable" not in text, text
        assert report.failed and len(text) < 500
    assert "SystemExit: bye" in graded(lambda: exit("bye")).expected


def test_numbers_that_are_none():
    right = READERS["sampler"]
    for wrong in (
        lambda *args: right(*args) + 0.5,
        lambda *args: map(str, right(*args)),
    ):
        assert "number" in check.sampler(wrong).expected
    assert "number" in check.zero(lambda *args: str(READERS["zero"](*args))).expected
    halfway = [[("F", 0.5, 0), ("B", 0.5, 0)]]
    assert "whole number" in check.schedule(lambda p, m: halfway).expected


# --------------------------------------------------------------- a function that hangs


def loops(*arguments):
    while True:
        try:
            len(arguments)
        except Exception:
            break


def waits(*arguments):
    return queue.Queue().get()


def yields(*arguments):
    while True:
        yield arguments


@pytest.mark.timeout(0)  # which is the alarm of pytest
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no alarms")
@pytest.mark.parametrize(
    ("grader", "f", "line"),
    [
        (check.allreduce, loops, "in `loops`"),
        (check.train_batch, waits, "in `waits`, line"),
        (check.plan, yields, ""),
    ],
)
def test_a_function_that_hangs_is_interrupted(grader, f, line, monkeypatch):
    monkeypatch.setattr(reports, "SECONDS", 0.2)
    before = threading.active_count(), signal.getsignal(signal.SIGALRM)
    report = grader(f)
    assert f"`{f.__name__}` did not end within 0.2" in report.expected
    assert line in report.mistake, report
    assert "1" in report.failed and len(repr(report).splitlines()) == 3
    assert before == (threading.active_count(), signal.getsignal(signal.SIGALRM))
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# ------------------------------------- what the first failure alone would name wrongly


def test_other_answers_of_readers():
    assert "1 parameter, 1 device" in check.zero(lambda *_: 0).failed

    def shuffled_part(n, ranks, rank, epoch):  # of 4 examples, which may come as before
        own = np.resize(np.arange(n), -(-n // ranks) * ranks)[rank::ranks]
        return np.random.RandomState(epoch).permutation(own)

    assert check.sampler(shuffled_part)

    B = get_backend("numpy")
    run = run_with(B, lambda path, values: None, from_file)

    def saves_at_the_end(gradient, start, steps, path):
        w = run(gradient, start, steps, path)
        replace(path, {"w": B.numpy(w), "v": np.zeros(3), "done": steps})
        return w

    assert "after each step" in check.resume(saves_at_the_end, "numpy").mistake
