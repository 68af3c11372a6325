"""on_grad_ready tells when a gradient is finished, once, and not before."""

import numpy as np
import pytest


def chain(B, params, x):
    """Multiply through: the gradient of the last parameter is finished first."""
    for p in params:
        x = x @ p
    return x.sum()


def attached(B, device, *shapes):
    rng = np.random.default_rng(0)
    params = [B.array(rng.normal(size=shape), device) for shape in shapes]
    for p in params:
        B.attach_grad(p)
    return params


SHAPES = [(3, 4), (4, 5), (5, 2), (2, 2)]


def test_gradients_are_reported_from_the_last_layer_to_the_first(B, device):
    params = attached(B, device, *SHAPES)
    told = []
    with B.record():
        y = chain(B, params, B.array(np.ones((2, 3)), device))
    with B.on_grad_ready(params, told.append):
        B.backward([y])
    assert told == [3, 2, 1, 0]


def test_a_gradient_is_complete_when_it_is_reported(B, device):
    params = attached(B, device, *SHAPES)
    seen = {}

    def ready(i):
        seen[i] = B.numpy(B.grad(params[i]))

    for _ in range(2):  # the second pass adds to the first one's gradients
        with B.record():
            # Parameter 1 is used twice: both uses must be in.
            x = B.array(np.ones((2, 3)), device)
            y = chain(B, params, x) + (params[1] * params[1]).sum()
        with B.on_grad_ready(params, ready):
            B.backward([y])
        assert sorted(seen) == [0, 1, 2, 3]
        for i, p in enumerate(params):
            np.testing.assert_array_equal(seen[i], B.numpy(B.grad(p)))
            assert np.abs(seen[i]).max() > 0


def test_what_the_call_writes_stays_in_the_gradient(B, device):
    params = attached(B, device, (2, 2), (2, 2))

    def double(i):
        g = B.grad(params[i])
        B.write_(g, 0, 4, B.copy_to(g, device), add=True)

    def gradients(ready):
        for p in params:
            B.clear_grad_(p)
        with B.record():
            y = chain(B, params, B.array(np.ones((1, 2)), device))
        with B.on_grad_ready(params, ready):
            B.backward([y])
        return [B.numpy(B.grad(p)) for p in params]

    plain, doubled = gradients(lambda i: None), gradients(double)
    for a, b in zip(plain, doubled, strict=True):
        np.testing.assert_array_equal(2 * a, b)


def test_unreached_parameters_are_reported_at_the_end(B, device):
    params = attached(B, device, (3, 4), (9, 9), (4, 2), (7,))
    told = []
    with B.record():
        y = chain(B, [params[0], params[2]], B.array(np.ones((2, 3)), device))
    with B.on_grad_ready(params, told.append):
        B.backward([y])
    assert sorted(told) == [0, 1, 2, 3]
    assert [i for i in told if i in (0, 2)] == [2, 0]


def test_nothing_is_reported_after_the_block(B, device):
    params = attached(B, device, (2, 2))
    told = []

    def backward():
        with B.record():
            y = chain(B, params, B.array(np.ones((1, 2)), device))
        B.backward([y])

    with B.on_grad_ready(params, told.append):
        backward()
    backward()
    assert told == [0]


def test_an_error_in_the_block_ends_the_reports(B, device):
    params = attached(B, device, (2, 2))
    told = []
    with pytest.raises(ZeroDivisionError), B.on_grad_ready(params, told.append):
        raise ZeroDivisionError
    with B.record():
        y = chain(B, params, B.array(np.ones((1, 2)), device))
    B.backward([y])
    assert told == []
