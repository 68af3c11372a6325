"""The optimizers' arithmetic gives the same bits on every backend.

`v*mu + g/n`, then `p - v*lr`, each operation on its own: a fused multiply-add would
round once where NumPy rounds twice.
"""

import numpy as np
import pytest
from backends.compare import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

rates = st.integers(1, 1000).map(lambda i: i / 1000)  # what people write
counts = st.integers(1, 4096)


def momentum_step(v, g, p, mu, n, lr):
    v = v * mu + g / n
    return v, p - v * lr


def draw(dtype, seed, shape):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(dtype)
        for _ in range(3)
    ]


def expected(values, mu, n, lr):
    number = values[0].dtype.type  # each number is rounded to the tensor's dtype first
    return momentum_step(*values, number(mu), number(n), number(lr))


def assert_as_numpy(B, device, got, want):
    on_gpu = B.device_of(B.zeros((), "float32", device)) != "cpu"
    if on_gpu:  # there PyTorch multiplies by 1/n, which may round differently
        scale = np.finfo(want.dtype).eps * np.abs(want).max(initial=0)
        assert np.abs(got - want).max(initial=0) <= 8 * scale
    else:
        assert_same_bits(got, want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(mu=rates, n=counts, lr=rates, seed=st.integers(0, 9999))
def test_a_momentum_step_has_numpys_bits(B, device, dtype, mu, n, lr, seed):
    values = draw(dtype, seed, (97,))
    tensors = [B.array(v, device) for v in values]
    got = momentum_step(*tensors, mu, n, lr)
    for g, w in zip(got, expected(values, mu, n, lr), strict=True):
        assert_as_numpy(B, device, B.numpy(g), w)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_square_root_is_correctly_rounded(B, device, dtype):
    # x ** 0.5 differs in one element out of 180 (PyTorch), 1,200 (MXNet), 20 (Paddle).
    for shape in ((10_000,), (0,), (2, 3), ()):
        values = np.abs(draw(dtype, 3, shape)[0])
        got, want = B.numpy(B.sqrt(B.array(values, device))), np.sqrt(values)
        assert_as_numpy(B, device, got, np.asarray(want))
