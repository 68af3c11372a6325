"""Operations of arbitrary shapes: whatever fits together equals the reference."""

import numpy as np
from backends.cases import Case, apart, normal, positive, run
from backends.compare import assert_close
from hypothesis import given
from hypothesis import strategies as st

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
