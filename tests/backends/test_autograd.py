"""Autograd in D2L's words: attach_grad, record, backward, grad, clear_grad_."""

import threading

import numpy as np
import pytest
from backends.compare import assert_close, assert_same_bits

from d2lmulti.errors import InvalidInput


def leaf(B, values, device="cpu"):
    x = B.array(np.asarray(values, "float64"), device)
    B.attach_grad(x)
    return x


def gradient(B, x):
    return B.numpy(B.grad(x)).tolist()


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


def test_gradients_add_up_until_they_are_cleared(B, device):
    x = leaf(B, [1.0, 2.0], device)
    for times in (1, 2):
        with B.record():
            y = x * x
        B.backward([y])
        assert gradient(B, x) == [2 * times, 4 * times]
    B.clear_grad_(x)
    assert gradient(B, x) == [0, 0]
    with B.record():
        y = x * 5
    B.backward([y])
    assert gradient(B, x) == [5, 5]


def test_clearing_reaches_a_gradient_that_was_taken_out_before(B):
    x = leaf(B, [1.0, 2.0])
    g = B.grad(x)
    with B.record():
        y = x * 3
    B.backward([y])
    assert B.numpy(g).tolist() == [3, 3]
    B.clear_grad_(x)
    assert B.numpy(g).tolist() == [0, 0]


def test_backward_starts_from_dys(B, device):
    x = leaf(B, [1.0, 2.0, 3.0], device)
    with B.record():
        y = x**2
    B.backward([y], [B.array([10.0, 0.0, -1.0], device)])
    assert gradient(B, x) == [20, 0, -6]


def test_backward_from_several_tensors_is_backward_from_their_sum(B, device):
    x, w = leaf(B, [1.0, 2.0], device), leaf(B, 3.0, device)
    with B.record():
        shared = x * w
        y, z = shared * shared, shared + x
    B.backward([y, z], [B.array([1.0, 1.0], device), B.array([2.0, 3.0], device)])
    # y = (xw)^2 and z = xw + x, weighted by 1 and by (2, 3)
    assert gradient(B, x) == [2 * 9 * 1 + 2 * 4, 2 * 9 * 2 + 3 * 4]
    assert gradient(B, w) == 2 * 3 * 1 + 2 * 3 * 4 + 2 * 1 + 3 * 2


def test_a_leaf_that_was_not_used_keeps_its_gradient(B):
    x, unused = leaf(B, [1.0]), leaf(B, [1.0])
    with B.record():
        y = x * 2
    B.backward([y])
    assert gradient(B, unused) == [0]


def test_a_leaf_that_is_used_often_collects_every_use(B):
    x = leaf(B, [[2.0, 3.0]])
    with B.record():
        y = x * x + x / 2 + x[0:1] - x.reshape((2,)).reshape((1, 2))
    B.backward([y])
    assert gradient(B, x) == [[4.5, 6.5]]


def test_a_result_waits_for_the_gradients_of_all_its_uses(B):
    # The way over c is longer: a must not pass its gradient on before c has added its.
    x = leaf(B, [2.0])
    with B.record():
        a = x * 3
        b = a + 1
        c = (b * a) * 2
        y = a + c
    B.backward([y])
    assert gradient(B, x) == [3 + 2 * 3 * (2 * 6 + 1)]  # y = a + 2a(a + 1), a = 3x


def test_backward_from_a_leaf_adds_dy(B):
    x = leaf(B, [1.0, 2.0])
    B.backward([x], [B.array([5.0, 6.0])])
    assert gradient(B, x) == [5, 6]


# -- what is recorded ---------------------------------------------------------------


def test_pause_records_nothing(B):
    x = leaf(B, [1.0, 2.0])
    with B.record():
        a = x * 2
        with B.pause():
            b = x * 100
        y = a + b
    B.backward([y])
    assert gradient(B, x) == [2, 2]


def test_recording_goes_on_after_a_pause_and_after_an_error(B):
    x = leaf(B, [1.0])
    with B.record():
        with pytest.raises(ZeroDivisionError), B.pause():
            raise ZeroDivisionError
        y = x * 2
    B.backward([y])
    assert gradient(B, x) == [2]


def test_a_context_can_be_opened_within_itself(B):
    x = leaf(B, [1.0])
    with B.record(), B.record():
        y = x * 2
        with B.pause(), B.pause():
            apart = x * 100
        y = y + apart + x
    B.backward([y])
    assert gradient(B, x) == [3]


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


def test_detach_cuts(B, device):
    x = leaf(B, [1.0, 2.0], device)
    with B.record():
        y = x * x
        z = y + B.detach(y) * 10
    assert_same_bits(B.numpy(B.detach(y)), B.numpy(y))
    B.backward([z])
    assert gradient(B, x) == [2, 4]


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


# -- segments -----------------------------------------------------------------------


def two_layers(B, X, W1, b1, W2):
    y = B.array([0, 1, 2], B.device_of(X))
    return B.relu(X @ W1 + b1), lambda H: B.cross_entropy(H @ W2, y)


def make(B, device):
    rng = np.random.default_rng(1)
    shapes = [(3, 4), (4, 5), (5,), (5, 3)]
    X, *params = [B.array(rng.normal(size=s), device) for s in shapes]
    for p in params:
        B.attach_grad(p)
    return X, params


def test_segments_joined_by_hand_equal_one_graph(B, device):
    X, whole = make(B, device)
    with B.record():
        H, rest = two_layers(B, X, *whole)
        losses = rest(H)
    B.backward([losses])

    X, cut = make(B, device)
    with B.record():
        H, rest = two_layers(B, X, *cut)
    arrived = B.copy_to(H, device)  # as if it came from another device
    B.attach_grad(arrived)
    with B.record():
        losses = rest(arrived)
    B.backward([losses])
    B.backward([H], [B.grad(arrived)])

    for p, q in zip(whole, cut, strict=True):
        assert_close(B.numpy(B.grad(q)), B.numpy(B.grad(p)))
        assert np.abs(B.numpy(B.grad(p))).max() > 0


def test_segments_of_two_graphs_do_not_disturb_each_other(B):
    x = leaf(B, [2.0])
    with B.record():
        first, second = x * 3, x * x
    B.backward([second])
    assert gradient(B, x) == [4]
    B.backward([first], [B.array([10.0])])
    assert gradient(B, x) == [34]
