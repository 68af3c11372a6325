"""read and write_: parts of the flattened tensor, the one way to write in place."""

import numpy as np
import pytest
from backends.compare import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import InvalidInput

DTYPES = ["float32", "float64", "int64"]
# Three dimensions at most, some of them empty; () is a single number.
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def parts(draw):
    """A shape, a part of it, and the way its values lie."""
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=int))
    first = draw(st.integers(0, size))
    last = draw(st.integers(first, size))
    as_rows = draw(st.booleans())  # the values need not come flat
    return shape, first, last, (1, last - first) if as_rows else (last - first,)


def numbers(rng, shape, dtype):
    return rng.integers(-9, 9, shape).astype(dtype)


@given(part=parts(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_read_takes_the_flat_part(B, device, part, dtype, seed):
    shape, first, last, _ = part
    values = numbers(np.random.default_rng(seed), shape, dtype)
    got = B.numpy(B.read(B.array(values, device), first, last))
    assert_same_bits(got, values.reshape(-1)[first:last])


@given(
    part=parts(),
    dtype=st.sampled_from(DTYPES),
    add=st.booleans(),
    source=st.sampled_from(["cpu", "sim:0", "sim:1"]),
    seed=st.integers(0, 99),
)
def test_write_changes_this_part_and_nothing_else(
    B, device, part, dtype, add, source, seed
):
    shape, first, last, given_shape = part
    rng = np.random.default_rng(seed)
    values, new = numbers(rng, shape, dtype), numbers(rng, given_shape, dtype)
    x, y = B.array(values, device), B.array(new, source)
    B.write_(x, first, last, y, add=add)
    flat = values.reshape(-1)
    flat[first:last] = flat[first:last] * add + new.reshape(-1)
    assert_same_bits(B.numpy(x), flat.reshape(shape))
    assert_same_bits(B.numpy(y), new)
    B.write_(y, 0, new.size, y, add=True)
    assert_same_bits(B.numpy(x), flat.reshape(shape))  # not tied to its source


@given(
    part=parts(),
    dtype=st.sampled_from([*DTYPES, "uint8"]),
    source=st.sampled_from(["cpu", "sim:1"]),
    seed=st.integers(0, 99),
)
def test_maximum_keeps_the_larger_in_this_part(B, device, part, dtype, source, seed):
    shape, first, last, given_shape = part
    rng = np.random.default_rng(seed)
    choices = [0, 1, 2, 200]
    if dtype != "uint8":
        choices += [-1, -200]
    if dtype.startswith("float"):
        choices += [np.nan, np.inf, -np.inf]
    values, new = (rng.choice(choices, s).astype(dtype) for s in (shape, given_shape))
    x, y = B.array(values, device), B.array(new, source)
    B.maximum_(x, first, last, y)
    flat = values.reshape(-1)
    flat[first:last] = np.maximum(flat[first:last], new.reshape(-1))
    np.testing.assert_array_equal(B.numpy(x), flat.reshape(shape))
    np.testing.assert_array_equal(B.numpy(y), new)


# What is written -> its shape and dtype, and the part of a (2, 3) of float64.
REFUSED = {
    "too few values": ((2,), "float64", 0, 3),
    "too many values": ((4,), "float64", 0, 3),
    "one value for three": ((1,), "float64", 0, 3),
    "a single number for three": ((), "float64", 0, 3),
    "no values": ((0,), "float64", 0, 3),
    "a value for nothing": ((1,), "float64", 2, 2),
    "values of less precision": ((3,), "float32", 0, 3),
    "integers": ((3,), "int64", 0, 3),
    "a part before the tensor": ((3,), "float64", -1, 2),
    "a part beyond the tensor": ((3,), "float64", 4, 7),
    "a part that ends before it begins": ((0,), "float64", 3, 2),
    "a part from the end": ((3,), "float64", -3, 0),
    "an empty part beyond the tensor": ((0,), "float64", 7, 7),
}


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("wrong", REFUSED)
def test_a_write_takes_exactly_the_values_of_a_part_that_is_there(B, add, wrong):
    shape, dtype, first, last = REFUSED[wrong]
    x = B.array(np.zeros((2, 3)))
    with pytest.raises(InvalidInput):
        B.write_(x, first, last, B.array(np.ones(shape, dtype)), add)
    assert (B.numpy(x) == 0).all()
    if not 0 <= first <= last <= 6:
        with pytest.raises(InvalidInput):
            B.read(x, first, last)


# -- layouts ------------------------------------------------------------------------


def test_transposed_tensors_are_read_and_written_from_in_their_own_order(B, device):
    y = B.transpose(B.array(np.arange(6.0).reshape(2, 3), device), (1, 0))
    assert B.numpy(B.read(y, 0, 6)).tolist() == [0, 3, 1, 4, 2, 5]
    assert B.numpy(B.read(y, 1, 4)).tolist() == [3, 1, 4]
    x = B.zeros((6,), "float64", device)
    B.write_(x, 0, 6, y)
    B.write_(x, 0, 6, y, add=True)
    assert B.numpy(x).tolist() == [0, 6, 2, 8, 4, 10]


@pytest.mark.parametrize("add", [False, True])
def test_a_write_to_a_transposed_tensor_is_never_lost(B, device, add):
    # A view in PyTorch and Paddle, which refuse; a tensor of its own in MXNet, where
    # the write arrives.
    x = B.transpose(B.array(np.zeros((2, 3)), device), (1, 0))
    try:
        B.write_(x, 0, 2, B.array([8.0, 9.0]), add)
        written = True
    except (InvalidInput, RuntimeError):
        written = False
    assert B.numpy(x).ravel().tolist() == ([8, 9] if written else [0, 0]) + [0] * 4


# -- tensors that take part in autograd -----------------------------------------------


def test_writing_to_a_gradient_changes_what_the_parameter_has(B, device):
    p = B.array(np.ones((2, 2)), device)
    B.attach_grad(p)
    with B.record():
        y = p * 3
    B.backward([y])
    B.write_(B.grad(p), 0, 2, B.array([10.0, 20.0]), add=True)
    B.write_(B.grad(p), 3, 4, B.array([7.0]))
    assert B.numpy(B.grad(p)).ravel().tolist() == [13, 23, 3, 7]
    with B.record():
        y = p * 3
    B.backward([y])  # later gradients add up on top of what was written
    assert B.numpy(B.grad(p)).ravel().tolist() == [16, 26, 6, 10]


def test_the_gradient_of_a_transposed_leaf_can_be_written_to(B, device):
    p = B.detach(B.transpose(B.array(np.ones((2, 3)), device), (1, 0)))
    B.attach_grad(p)
    with B.record():
        y = p * p
    B.backward([y])
    B.write_(B.grad(p), 0, 2, B.array([8.0, 9.0]))
    assert B.numpy(B.grad(p)).ravel().tolist() == [8, 9, 2, 2, 2, 2]


def test_a_write_while_recording_is_no_part_of_the_graph(B, device):
    p, seen = B.array([1.0, 2.0], device), B.zeros((2,), "float64", device)
    B.attach_grad(p)
    with B.record():
        y = p * 3
        B.write_(seen, 0, 2, y)  # a moving average, say
        B.write_(seen, 0, 2, y, add=True)
        z = y * seen
    B.backward([z])
    assert B.numpy(seen).tolist() == [6, 12]
    assert B.numpy(B.grad(p)).tolist() == [18, 36]


def test_what_is_read_is_no_part_of_the_graph(B, device):
    p = B.array([1.0, 2.0], device)
    B.attach_grad(p)
    with B.record():
        y = p * B.read(p, 0, 2)
    B.backward([y])
    assert B.numpy(B.grad(p)).tolist() == [1, 2]


@given(shape=SHAPES, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_memory_is_that_of_the_tensor(B, shape, dtype, seed):
    values = numbers(np.random.default_rng(seed), shape, dtype)
    x = B.array(values, "cpu")
    memory = B.memory(x)
    assert_same_bits(memory, values.reshape(-1))
    memory += 1  # the tensor's own, not a copy's
    assert_same_bits(B.numpy(x), values + np.asarray(1, dtype))


def test_memory_waits_for_pending_work(B):
    x = B.array(np.ones((300, 300)), "cpu")
    for _ in range(20):
        x = x @ x / 300.0
    assert (B.memory(x) == 1).all()


def test_numpy_does_not_reach_a_strided_view(B):
    x = B.transpose(B.array(np.arange(6.0).reshape(2, 3), "cpu"), (1, 0))
    memory = B.memory(x)  # MXNet transposes into new memory
    assert memory is None or memory.tolist() == [0, 3, 1, 4, 2, 5]
