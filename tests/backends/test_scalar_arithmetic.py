"""The optimizers' arithmetic gives the same bits on every backend; Adam is PyTorch's.

`v*mu + g/n`, then `p - v*lr`, each operation on its own: a fused multiply-add would
round once where NumPy rounds twice.
"""

import numpy as np
import pytest
from backends.compare import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import InvalidInput
from d2lmulti.optimizers import Adam, AdamW

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


# -- Adam ----------------------------------------------------------------------------


def average(a, value, beta):
    return (a - value) * beta + value


@pytest.mark.dealt
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("steps", "decay"), [(1, 0.0), (4, 0.0), (4, 0.25)])
def test_steps_have_numpys_bits(B, device, dtype, steps, decay, rng):
    n = 7
    number = np.dtype(dtype).type
    b1, b2, eps, lr = map(number, (0.9, 0.999, 1e-8, 0.01))
    shapes = [(3, 5), (97,)]
    values = [rng.normal(size=s).astype(dtype) for s in shapes]
    params = [B.array(v, device) for v in values]
    for p in params:
        B.attach_grad(p)
    optimizer = AdamW(weight_decay=decay) if decay else Adam()
    state = optimizer.init(params)
    ms, vs = ([np.zeros_like(v) for v in values] for _ in "mv")
    c1 = c2 = np.zeros(1, dtype)
    for _ in range(steps):
        c1, c2 = average(c1, number(1), b1), average(c2, number(1), b2)
        for i, p in enumerate(params):
            grad = (rng.normal(size=shapes[i]) * 2.0 ** rng.integers(-9, 9)).astype(
                dtype
            )
            B.write_(B.grad(p), 0, grad.size, B.array(grad, device))
            g = grad / number(n)
            ms[i] = average(ms[i], g, b1)
            vs[i] = average(vs[i], g * g, b2)
            step = (ms[i] / c1) / (np.sqrt(vs[i] / c2) + eps) * lr
            decayed = values[i] - values[i] * number(decay) * lr
            values[i] = decayed - step
        optimizer.step_(params, state, 0.01, n)
    for got, want in zip([*params, *state], [*values, *ms, *vs, c1, c2], strict=True):
        assert_as_numpy(B, device, B.numpy(got), want)


def test_torchs_own_steps(load, rng):
    torch = pytest.importorskip("torch")
    B = load("torch")
    ours, theirs = (torch.tensor(np.arange(5.0), requires_grad=True) for _ in "ab")
    optimizer = AdamW(0.8, 0.99, 1e-6, weight_decay=0.3)
    peer = torch.optim.AdamW([theirs], 0.1, (0.8, 0.99), 1e-6, weight_decay=0.3)
    B.attach_grad(ours)
    state = optimizer.init([ours])
    for _ in range(6):
        grad = rng.normal(size=5)
        B.write_(B.grad(ours), 0, 5, B.array(4 * grad))
        optimizer.step_([ours], state, 0.1, 4)
        theirs.grad = torch.tensor(grad)
        peer.step()
    assert B.numpy(ours) == pytest.approx(B.numpy(theirs), rel=1e-12)


def test_a_state_of_another_size_is_refused(B):
    p = B.array(np.ones(2))
    B.attach_grad(p)
    with pytest.raises(InvalidInput, match="got 2"):
        Adam().step_([p], Adam().init([p])[:2], 0.1, 1)
