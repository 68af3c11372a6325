"""Every operation, forward and backward, equals the NumPy reference everywhere."""

import itertools

import numpy as np
import pytest
from backends.cases import CASES, Case, apart, normal, positive, run
from backends.compare import assert_close, assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

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


# -- arbitrary shapes: whatever fits together ------------------------------------------

few = st.integers(1, 4)
dtypes = st.sampled_from(["float32", "float64"])


def assert_equals_reference(B, reference, case, dtype, seed=0):
    values = case.draw(dtype, seed)
    pairs = zip(run(B, case, values), run(reference, case, values), strict=True)
    for i, (got, want) in enumerate(pairs):
        assert_close(got, want, f"gradient {i - 1}" if i else "value", least=1e-2)


@given(
    sizes=st.tuples(few, few, few, st.integers(1, 8), st.integers(1, 8)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.integers(0, 2),
    bias=st.booleans(),
    dtype=dtypes,
)
def test_conv2d(B, reference, sizes, kernel, padding, bias, dtype):
    batch, c_in, c_out, height, width = sizes
    kh, kw = min(kernel[0], height), min(kernel[1], width)
    case = Case(
        "conv2d",
        lambda B, X, W, *b: B.conv2d(X, W, b[0] if b else None, padding),
        [normal(batch, c_in, height, width), normal(c_out, c_in, kh, kw)]
        + [normal(c_out)] * bias,
    )
    assert_equals_reference(B, reference, case, dtype)


@given(
    sizes=st.tuples(few, few, st.integers(1, 9), st.integers(1, 9)),
    size=st.integers(1, 4),
    largest=st.booleans(),
    dtype=dtypes,
)
def test_pooling_drops_what_fills_no_window(B, reference, sizes, size, largest, dtype):
    size = min(size, *sizes[2:])
    verb = "max_pool2d" if largest else "avg_pool2d"
    case = Case(verb, lambda B, X: getattr(B, verb)(X, size), [apart(*sizes)])
    assert_equals_reference(B, reference, case, dtype)
    out = run(B, case, case.draw(dtype))[0]
    assert out.shape == (*sizes[:2], sizes[2] // size, sizes[3] // size)


@st.composite
def broadcastable(draw):
    """Two shapes that NumPy would broadcast against each other."""
    whole = draw(st.lists(few, max_size=3))
    shapes = []
    for _ in range(2):
        kept = whole[draw(st.integers(0, len(whole))) :]
        shapes.append(tuple(draw(st.sampled_from([1, n])) for n in kept))
    return shapes


@given(shapes=broadcastable(), operator=st.sampled_from("+-*/"), dtype=dtypes)
def test_broadcasting(B, reference, shapes, operator, dtype):
    f = {
        "+": lambda B, x, y: x + y,
        "-": lambda B, x, y: x - y,
        "*": lambda B, x, y: x * y,
        "/": lambda B, x, y: x / y,
    }[operator]
    case = Case(operator, f, [normal(*shapes[0]), positive(*shapes[1])])
    assert_equals_reference(B, reference, case, dtype)


@given(shape=st.lists(few, min_size=1, max_size=4), data=st.data(), dtype=dtypes)
def test_sum_and_transpose(B, reference, shape, data, dtype):
    dims = range(len(shape))
    axes = tuple(data.draw(st.permutations(dims)))
    summed = tuple(data.draw(st.sets(st.sampled_from(dims), min_size=1)))
    keepdims = data.draw(st.booleans())
    case = Case(
        "sum",
        lambda B, x: B.sum(B.transpose(x, axes), summed, keepdims),
        [normal(*shape)],
    )
    assert_equals_reference(B, reference, case, dtype)


@given(shape=st.lists(few, min_size=1, max_size=3), data=st.data(), dtype=dtypes)
def test_concat_and_rows(B, reference, shape, data, dtype):
    axis = data.draw(st.integers(0, len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    whole = sum(lengths) if axis == 0 else shape[0]
    first = data.draw(st.integers(0, whole))
    last = data.draw(st.integers(first, whole))
    case = Case(
        "concat",
        lambda B, *xs: B.concat(xs, axis)[first:last],
        [normal(*shape[:axis], n, *shape[axis + 1 :]) for n in lengths],
    )
    assert_equals_reference(B, reference, case, dtype)


def test_a_layer_norm_of_equal_values_is_beta(B):
    ones = B.array(np.ones((2, 4)))
    out = B.layer_norm(ones * 3, ones[0], B.array(np.arange(4.0)))
    assert B.numpy(out).tolist() == [[0, 1, 2, 3]] * 2
