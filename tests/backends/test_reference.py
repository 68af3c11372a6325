"""The reference itself: its gradients equal finite differences."""

import numpy as np
import pytest
from backends.cases import CASES, run, weights

from d2lmulti.errors import InvalidInput

EPS = 1e-6


def loss(B, case, values, dy):
    with B.pause():
        out = B.numpy(case.f(B, *[B.array(v) for v in values]))
    return float((out * dy).sum())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_equal_finite_differences(reference, case):
    values = case.draw("float64")
    out, *gradients = run(reference, case, values)
    dy = weights(out)
    floating = [i for i, v in enumerate(values) if v.dtype.kind == "f"]
    for i, gradient in zip(floating, gradients, strict=True):
        numeric = np.zeros_like(values[i])
        for at in np.ndindex(values[i].shape):
            ends = []
            for step in (EPS, -EPS):
                moved = [v.copy() for v in values]
                moved[i][at] += step
                ends.append(loss(reference, case, moved, dy))
            numeric[at] = (ends[0] - ends[1]) / (2 * EPS)
        scale = max(np.abs(numeric).max(initial=0), 1e-3)
        assert np.abs(gradient - numeric).max(initial=0) / scale < 1e-6


def test_a_graph_is_used_once(reference):
    B = reference
    x = B.array([1.0])
    B.attach_grad(x)
    with B.record():
        y = x * x
        z = y * 2
    B.backward([z])
    for used in (z, y):
        with pytest.raises(InvalidInput, match="only once"):
            B.backward([used])
    assert B.numpy(B.grad(x)).tolist() == [4]


def test_assignment_in_place_is_refused(reference):
    x = reference.array([1.0])
    with pytest.raises(InvalidInput, match=r"write_\(x"):
        x += 1


def test_a_long_chain_needs_no_recursion(reference):
    B = reference
    x = B.array([1.0])
    B.attach_grad(x)
    with B.record():
        y = x
        for _ in range(3000):
            y = y + x
    B.backward([y])
    assert B.numpy(B.grad(x)).tolist() == [3001]


def test_equal_graphs_give_equal_bits(reference):
    # Sums in the order of memory addresses would differ from replica to replica.
    B = reference
    values = np.random.default_rng(0).normal(size=9).astype("float32")
    found = set()
    for _ in range(20):
        x = B.array(np.float32(1.1))
        B.attach_grad(x)
        with B.record():
            losses = [(x * float(v)) ** 2 / 3 for v in values]
        B.backward(losses)
        found.add(B.numpy(B.grad(x)).tobytes())
    assert len(found) == 1
