"""Storage: whose memory is it? `copy_to`, `array` and `numpy` never share any."""

import threading

import numpy as np
import pytest
from backends.compare import assert_same_bits

DTYPES = ["float32", "float64", "int64"]
SHAPES = [(), (1,), (7,), (2, 3), (2, 1, 3), (0,), (0, 3), (2, 0)]


def ramp(shape, dtype="float64"):
    return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def fill_(B, x, value):
    size = int(np.prod(x.shape, dtype=int))
    B.write_(x, 0, size, B.array(np.full(size, value, B.dtype_of(x))))


# -- array, numpy, zeros ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*DTYPES, "uint8", "bool"])
def test_values_come_back_as_they_went_in(B, device, dtype):
    for shape in SHAPES:
        values = ramp(shape, dtype)
        x = B.array(values, device)
        assert B.dtype_of(x) == dtype
        assert tuple(x.shape) == shape
        assert_same_bits(B.numpy(x), values)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6.0)[::-1],
        np.arange(12.0)[::2],
        np.broadcast_to(np.float64(3), (2, 2)),
        np.arange(3).astype(">f8"),
        [[1.0, 2.0], [3.0, 4.0]],
        (1.0, 2.0),
        2.5,
    ],
    ids=["transposed", "reversed", "strided", "broadcast", "big-endian"]
    + ["lists", "tuple", "number"],
)
def test_array_takes_any_layout(B, values):
    x = B.array(values)
    assert_same_bits(B.numpy(x), np.asarray(values).astype("float64"))
    fill_(B, x, 9)  # row by row in memory, whatever the source was
    assert (B.numpy(x) == 9).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros(B, device, dtype):
    for shape in SHAPES:
        zeros = np.zeros(shape, dtype)
        assert_same_bits(B.numpy(B.zeros(shape, dtype, device)), zeros)
        assert_same_bits(B.numpy(B.zeros(list(shape), dtype)), zeros)


# -- what shares no memory ----------------------------------------------------------

# How a tensor of the values of `ramp((2, 3))` is made from another one, or from NumPy.
COPIES = {
    "to the same device": lambda B, x, device: B.copy_to(x, device),
    "to the CPU": lambda B, x, device: B.copy_to(x, "cpu"),
    "to sim:0": lambda B, x, device: B.copy_to(x, "sim:0"),
    "to sim:1": lambda B, x, device: B.copy_to(x, "sim:1"),
    "to the name of its device": lambda B, x, device: B.copy_to(x, B.device_of(x)),
    "to the framework's device": lambda B, x, device: B.copy_to(x, B.native(device)),
    "of rows": lambda B, x, device: B.copy_to(x[0:7], device),
    "to a dtype": lambda B, x, device: B.cast(x, "float32"),
    "by way of NumPy": lambda B, x, device: B.array(B.numpy(x), device),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_has_the_same_values_and_never_shares_storage(B, device, how):
    for shape in SHAPES:
        x = B.array(ramp(shape, "float32"), device)
        if shape or how != "of rows":
            copy = COPIES[how](B, x, device)
            assert B.dtype_of(copy) == "float32"
            assert_same_bits(B.numpy(copy), ramp(shape, "float32"))
            fill_(B, copy, 9)
            assert_same_bits(B.numpy(x), ramp(shape, "float32"))
            fill_(B, x, 8)
            assert (B.numpy(copy) == 9).all()


def test_arrays_of_numpy_share_nothing_with_tensors(B, device):
    values = ramp((2, 3))
    x = B.array(values, device)
    values[:] = 0
    for y in (x, B.transpose(x, (1, 0))):
        seen = B.numpy(y)
        seen[:] = 0
        assert_same_bits(B.numpy(x), ramp((2, 3)))
    seen = B.numpy(x)
    fill_(B, x, 9)
    assert_same_bits(seen, ramp((2, 3)))


def test_a_copy_of_a_parameter_is_no_part_of_its_graph(B, device):
    x = B.array(ramp((2, 3)), device)
    B.attach_grad(x)
    with B.record():
        copy = B.copy_to(x, device)
        B.attach_grad(copy)  # legal: the copy is a leaf of its own
        y = x * 2 + copy * 3
    B.backward([y])
    assert (B.numpy(B.grad(x)) == 2).all()
    assert (B.numpy(B.grad(copy)) == 3).all()


def test_a_copy_of_a_transposed_tensor_can_be_written_to(B, device):
    x = B.array(ramp((2, 3)), device)
    copy = B.copy_to(B.transpose(x, (1, 0)), device)
    assert_same_bits(B.numpy(copy), ramp((2, 3)).T.copy())
    B.write_(copy, 0, 2, B.array([8.0, 9.0]))
    assert B.numpy(copy).ravel().tolist() == [8, 9, 2, 5, 3, 6]
    assert_same_bits(B.numpy(x), ramp((2, 3)))


# -- rows, and threads --------------------------------------------------------------


def test_rows_are_read_as_numpy_reads_them(B, device):
    values = ramp((5, 2))
    x = B.array(values, device)
    assert len(x) == 5
    for first, last in [(0, 5), (1, 3), (2, 2), (4, 9)]:
        assert_same_bits(B.numpy(x[first:last]), values[first:last])


def test_scalars_and_empty_tensors_are_legal_in_every_thread(B):
    found = []

    def work():  # MXNet's NumPy semantics are switched on thread by thread
        found.append(B.numpy(B.array(np.float32(2)) * 3))
        found.append(B.numpy(B.zeros((0, 2), "float64")))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [(f.shape, f.sum()) for f in found] == [((), 6), ((0, 2), 0)]
