"""Adam has NumPy's bits on every backend, and PyTorch's own steps."""

from __future__ import annotations

import numpy as np
import pytest
from backends.test_scalar_arithmetic import assert_as_numpy

from d2lmulti.errors import InvalidInput
from d2lmulti.optimizers import Adam, AdamW


def average(a: np.ndarray, value: np.ndarray, beta: np.floating) -> np.ndarray:
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
