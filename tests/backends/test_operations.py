"""Every operation, forward and backward, equals the NumPy reference everywhere."""

import itertools

import numpy as np
import pytest
from backends.cases import CASES, run
from backends.compare import assert_close, assert_same_bits

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@by_name
def test_values_and_gradients_equal_the_reference(B, reference, places, case):
    for dtype in ("float32", "float64"):
        values = case.draw(dtype)
        want = run(reference, case, values)
        names = ["value", *(f"gradient {i}" for i in range(len(want) - 1))]
        for place in places:
            got = run(B, case, values, place)
            for name, g, w in zip(names, got, want, strict=True):
                assert w.dtype == dtype
                assert_close(g, w, f"{name} in {dtype} on {place}")


def test_argmax_is_an_int64_index(B, device):
    for dtype in ("float32", "float64", "int64"):
        t = B.array(np.array([[1, 5, 2], [7, 0, 3]], dtype), device)
        assert_same_bits(B.numpy(B.argmax(t)), np.array([1, 0]))
        assert_same_bits(B.numpy(B.argmax(t, axis=0)), np.array([1, 0, 1]))


@pytest.mark.parametrize("keepdims", [True, False])
def test_max_is_a_constant_for_the_gradient(B, device, keepdims):
    rng = np.random.default_rng(0)
    for dtype, axis in itertools.product(("float32", "float64"), (0, -1, (0, 2))):
        values = rng.normal(size=(2, 3, 4)).astype(dtype)
        x = B.array(values, device)
        B.attach_grad(x)
        with B.record():
            largest = B.max(x, axis, keepdims)
            y = x * 2 + B.max(x, (0, 1, 2), keepdims=True)
        B.backward([y])
        assert_same_bits(B.numpy(largest), values.max(axis, keepdims=keepdims))
        assert_same_bits(B.numpy(B.grad(x)), np.full_like(values, 2))


def test_gelu_is_exact_and_not_its_tanh_form(B):
    got = B.numpy(B.gelu(B.array([-3.0, -1.0, 1.0, 3.0])))
    exact = [-0.0040496940948, -0.158655253931, 0.841344746069, 2.9959503059]
    assert np.abs(got - exact).max() < 1e-10  # the tanh form is off by up to 4e-4


@pytest.mark.parametrize("verb", ["avg_pool2d", "max_pool2d"])
def test_a_window_that_fits_nowhere_is_an_error(B, verb):
    X = B.array(np.zeros((1, 1, 2, 5)))
    for size in (0, 3, -1):
        with pytest.raises(Exception, match="."):  # Paddle would pad the image
            B.numpy(getattr(B, verb)(X, size))


def test_operations_change_nothing_they_are_given(B, device):
    for case in CASES:
        values = case.draw("float64")
        tensors = [B.array(v, device) for v in values]
        with B.pause():
            case.f(B, *tensors)
        for t, v in zip(tensors, values, strict=True):
            assert_same_bits(B.numpy(t), v)
