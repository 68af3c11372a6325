"""What autograd refuses, in the same words on every backend."""

import numpy as np
import pytest

from d2lmulti.errors import InvalidInput


def leaf(B, values, device="cpu"):
    x = B.array(np.asarray(values, "float64"), device)
    B.attach_grad(x)
    return x


def test_a_gradient_that_was_never_attached_is_refused(B):
    x = B.array([1.0])
    for verb in (B.grad, B.clear_grad_):
        with pytest.raises(InvalidInput, match=r"call attach_grad\(x\)"):
            verb(x)


@pytest.mark.parametrize(
    "dy", [[1.0], [[1.0, 2.0]], 1.0, [1.0, 2.0, 3.0], []], ids=repr
)
def test_a_gradient_of_another_shape_is_refused(B, dy):
    x = leaf(B, [1.0, 2.0])
    with B.record():
        y = x * x
    with pytest.raises(InvalidInput, match=r"dys\[0\] with shape \(2,\)"):
        B.backward([y], [B.array(np.asarray(dy, "float64"))])


def test_a_gradient_of_another_dtype_is_refused(B):
    x = leaf(B, [1.0, 2.0])
    with B.record():
        y = x * x
    with pytest.raises(InvalidInput, match="dtype float64.*got .*float32"):
        B.backward([y], [B.array(np.ones(2, "float32"))])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_one_gradient_for_each_tensor(B, count):
    x = leaf(B, [1.0])
    with B.record():
        ys = [x * 2, x * 3]
    with pytest.raises(InvalidInput, match=f"each of 2 tensors, got {count}"):
        B.backward(ys, [B.array([1.0])] * count)


def test_backward_takes_a_list(B):
    x = leaf(B, [1.0])
    with B.record():
        y = x * 2
    for ys in (y, []):
        with pytest.raises(InvalidInput, match=r"pass \[loss\]"):
            B.backward(ys)
