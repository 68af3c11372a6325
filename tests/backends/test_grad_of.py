"""grad_of: the gradients of some leaves alone, now, and of others later."""

import numpy as np
import pytest
from backends.compare import assert_close


def leaves(B, *values):
    found = [B.array(np.asarray(v, "float64")) for v in values]
    for x in found:
        B.attach_grad(x)
    return found


def layer(B, device="cpu"):
    rng = np.random.default_rng(3)
    X, W, b = [B.array(rng.normal(size=s), device) for s in ((4, 3), (3, 2), (2,))]
    for x in (X, W, b):
        B.attach_grad(x)
    with B.record():
        Y = B.relu(X @ W + b)
    return X, W, b, Y, B.array(rng.normal(size=(4, 2)), device)


def test_inputs_first_and_weights_later_equal_one_backward_pass(B, device):
    X, W, b, Y, dY = layer(B, device)
    B.backward([Y], [dY])
    whole = [B.numpy(B.grad(x)) for x in (X, W, b)]

    X, W, b, Y, dY = layer(B, device)
    (dX,) = B.grad_of([Y], [X], [dY], keep_graph=True)
    db, dW = B.grad_of([Y], [b, W], [dY])
    for got, want in zip((dX, dW, db), whole, strict=True):
        assert isinstance(got, B.Tensor)
        assert_close(B.numpy(got), want)
        assert np.abs(want).max() > 0


def test_no_leafs_own_gradient_changes(B):
    x, w = leaves(B, [1.0, 2.0], [3.0, 4.0])
    with B.record():
        y = x * w
    assert B.numpy(*B.grad_of([y], [x])).tolist() == [3, 4]
    assert B.numpy(B.grad(x)).tolist() == B.numpy(B.grad(w)).tolist() == [0, 0]


def test_it_starts_from_ones_and_adds_up_several_ys(B):
    (x,) = leaves(B, [1.0, 2.0])
    with B.record():
        y, z = x * x, x * 3
    (dx,) = B.grad_of([y, z], [x], keep_graph=True)
    assert B.numpy(dx).tolist() == [5, 7]
    dys = [B.array([1.0, 0.0]), B.array([0.0, 2.0])]
    (dx,) = B.grad_of([y, z], [x], dys)
    assert B.numpy(dx).tolist() == [2, 6]


def test_what_it_gives_shares_no_storage_with_dys(B):
    (x,) = leaves(B, [1.0, 2.0])
    with B.record():
        y = x + 0
    dy = B.array([5.0, 6.0])
    (dx,) = B.grad_of([y], [x], [dy])
    taken = B.copy_to(dx, "cpu")
    B.write_(taken, 0, 2, B.array([0.0, 0.0]))
    assert B.numpy(dx).tolist() == B.numpy(dy).tolist() == [5, 6]


def test_backward_after_grad_of(B):
    x, w = leaves(B, [1.0, 2.0], [3.0, 4.0])
    with B.record():
        y = x * w
    B.grad_of([y], [x], keep_graph=True)
    B.backward([y])
    assert B.numpy(B.grad(w)).tolist() == [1, 2]


def test_what_is_an_error_here_or_in_the_framework(B):
    x, w = leaves(B, [1.0], [2.0])
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
