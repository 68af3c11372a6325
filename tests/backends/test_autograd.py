"""Autograd in D2L's words: attach_grad, record, backward, grad, clear_grad_."""

import threading
from typing import NamedTuple

import numpy as np
import pytest
from backends.compare import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import InvalidInput


def leaf(B, values, device="cpu"):
    x = B.array(np.asarray(values, "float64"), device)
    B.attach_grad(x)
    return x


def gradient(B, x):
    return B.numpy(B.grad(x)).tolist()


# -- random programs -----------------------------------------------------------------

LEAVES, LENGTH = 3, 4
KINDS = ["+", "*", "relu", "+", "*", "paused", "detached"]


class Value(NamedTuple):
    """A vector, its derivative by each leaf, and the leaves on which it depends."""

    value: np.ndarray
    by: np.ndarray  # (leaf, element)
    leaves: set[int]


def by_hand(kind, x, y):
    """Compute one line of a program, with the rules of differentiation."""
    if kind == "+":
        return Value(x.value + y.value, x.by + y.by, x.leaves | y.leaves)
    if kind == "*":
        by = x.by * y.value + y.by * x.value
        return Value(x.value * y.value, by, x.leaves | y.leaves)
    if kind == "relu":
        return Value(np.maximum(x.value, 0), x.by * (x.value > 0), x.leaves)
    return Value(x.value * (2 if kind == "paused" else 1), x.by * 0, set())


def with_backend(B, kind, x, y):
    """Compute the same line."""
    if kind == "+":
        return x + y
    if kind == "*":
        return x * y
    if kind == "relu":
        return B.relu(x)
    if kind == "detached":
        return B.detach(x)
    with B.pause(), B.pause():
        return x * 2


@given(seed=st.integers(0, 9999))
def test_gradients_of_random_programs_are_exact(B, places, seed):
    """Values are used never, once, or often; gradients start from some of them.

    All are small whole numbers, so equal means equal.
    """
    rng = np.random.default_rng(seed)
    device = places[seed % len(places)]
    starts = rng.choice([-2.0, -1.0, 1.0, 2.0], (LEAVES, LENGTH))
    values = [
        Value(start, np.eye(LEAVES)[:, i : i + 1] * np.ones(LENGTH), {i})
        for i, start in enumerate(starts)
    ]
    lines = [
        (str(rng.choice(KINDS)), *rng.integers(0, LEAVES + n, 2).tolist())
        for n in range(rng.integers(1, 7))
    ]
    lines.append(("*", len(lines) + 1, 0))  # one at least is recorded
    for kind, i, j in lines:
        values.append(by_hand(kind, values[i], values[j]))
    recorded = [n for n, value in enumerate(values) if value.leaves]
    from_ = rng.choice(recorded[LEAVES:], rng.integers(1, len(recorded) - 2), False)
    dys = rng.integers(-3, 4, (len(from_), LENGTH)).astype("float64")
    want = sum(values[n].by * dy for n, dy in zip(from_, dys, strict=True))
    reached = sorted(set.union(*(values[n].leaves for n in from_)))

    leaves = [leaf(B, start, device) for start in starts]
    for times in (1, 2):
        tensors = list(leaves)
        with B.record(), B.record():
            for kind, i, j in lines:
                tensors.append(with_backend(B, kind, tensors[i], tensors[j]))
        for tensor, value in zip(tensors, values, strict=True):
            assert B.numpy(tensor).tolist() == value.value.tolist()
        ys, heads = [tensors[n] for n in from_], [B.array(dy, device) for dy in dys]
        some = B.grad_of(ys, [leaves[i] for i in reached], heads, keep_graph=True)
        assert all(isinstance(dx, B.Tensor) for dx in some)
        assert [B.numpy(dx).tolist() for dx in some] == want[reached].tolist()
        # No leaf's own gradient has changed; now it does.
        assert [gradient(B, x) for x in leaves] == ((times - 1) * want).tolist()
        B.backward(ys, heads)
        assert [gradient(B, x) for x in leaves] == (times * want).tolist()
    for x in leaves:
        B.clear_grad_(x)
        assert gradient(B, x) == [0] * LENGTH


# -- one by one ----------------------------------------------------------------------


def test_a_gradient_starts_at_zero(B, device):
    for dtype in ("float32", "float64"):
        x = B.array(np.ones((2, 3), dtype), device)
        B.attach_grad(x)
        assert_same_bits(B.numpy(B.grad(x)), np.zeros((2, 3), dtype))


def test_attaching_again_starts_again(B):
    x = leaf(B, [1.0, 2.0])
    with B.record():
        y = x * 3
    B.backward([y])
    B.attach_grad(x)
    assert gradient(B, x) == [0, 0]


def test_clearing_reaches_a_gradient_that_was_taken_out_before(B):
    x = leaf(B, [1.0, 2.0])
    g = B.grad(x)
    with B.record():
        y = x * 3
    B.backward([y])
    assert B.numpy(g).tolist() == [3, 3]
    B.clear_grad_(x)
    assert B.numpy(g).tolist() == [0, 0]


def test_backward_from_a_leaf_adds_dy(B):
    x = leaf(B, [1.0, 2.0])
    B.backward([x], [B.array([5.0, 6.0])])
    assert gradient(B, x) == [5, 6]


def test_recording_goes_on_after_a_pause_and_after_an_error(B):
    x = leaf(B, [1.0])
    with B.record():
        with pytest.raises(ZeroDivisionError), B.pause():
            raise ZeroDivisionError
        y = x * 2
    B.backward([y])
    assert gradient(B, x) == [2]


def test_another_thread_does_not_record(reference):
    B = reference  # in PyTorch and Paddle recording is on unless it is paused
    x = leaf(B, [1.0])
    found = []
    with B.record():
        thread = threading.Thread(target=lambda: found.append(x * 2))
        thread.start()
        thread.join()
    with pytest.raises(InvalidInput, match=r"record\(\)"):
        B.backward(found)


def test_backward_from_what_was_not_recorded_is_refused(B):
    x = leaf(B, [1.0])
    with B.record():
        recorded = x * 2
        with B.pause():
            paused = x * 2
        constant = B.array([1.0]) * 2
    for ys in ([paused], [constant], [recorded, paused]):
        with pytest.raises(Exception, match="."):  # Paddle would do nothing
            B.backward(ys)


def test_detach_makes_a_leaf(B):
    x = leaf(B, [3.0])
    with B.record():
        y = B.detach(x * 2)
    B.attach_grad(y)
    with B.record():
        z = y * y
    B.backward([z])
    assert gradient(B, y) == [12]
    assert gradient(B, x) == [0]


def test_what_grad_of_gives_shares_no_storage_with_dys(B):
    x = leaf(B, [1.0, 2.0])
    with B.record():
        y = x + 0
    dy = B.array([5.0, 6.0])
    (dx,) = B.grad_of([y], [x], [dy], keep_graph=True)
    taken = B.copy_to(dx, "cpu")
    B.write_(taken, 0, 2, B.array([0.0, 0.0]))
    assert B.numpy(dx).tolist() == B.numpy(dy).tolist() == [5, 6]
    assert B.numpy(*B.grad_of([y], [x])).tolist() == [1, 1]


def test_grad_of_what_has_no_gradient_is_an_error(B):
    x, w = leaf(B, [1.0]), leaf(B, [2.0])
    with B.record():
        y = x * 2
    for ys, xs, dys in (
        ([y], [x, w], None),
        ([y], [B.array([1.0])], None),
        ([y], [x], [B.array([1.0, 2.0])]),
        ([B.array([1.0]) * 2], [x], None),
    ):
        with pytest.raises(Exception, match="."):
            B.grad_of(ys, xs, dys, keep_graph=True)


def test_two_graphs_do_not_disturb_each_other(B):
    x = leaf(B, [2.0])
    with B.record():
        first, second = x * 3, x * x
    B.backward([second])
    assert gradient(B, x) == [4]
    B.backward([first], [B.array([10.0])])
    assert gradient(B, x) == [34]
