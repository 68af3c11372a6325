"""on_grad_ready tells when a gradient is finished, once, and not before."""

from contextlib import suppress

import numpy as np
import pytest


def attached(B, device, *shapes):
    rng = np.random.default_rng(0)
    params = [B.array(rng.normal(size=shape), device) for shape in shapes]
    for p in params:
        B.attach_grad(p)
    return params


def chain(B, params, device):
    """Multiply ones by all parameters: the last one's gradient is finished first."""
    x = B.array(np.ones((2, params[0].shape[0])), device)
    for p in params:
        x = x @ p
    return x.sum()


def backward(B, params, device):
    with B.record():
        y = chain(B, params, device)
    B.backward([y])


def test_a_gradient_is_complete_when_it_is_reported(B, device):
    params = attached(B, device, (3, 4), (4, 5), (5, 2), (2, 2))
    seen = {}

    def ready(i):
        seen[i] = B.numpy(B.grad(params[i]))

    for _ in range(2):  # the second pass adds to the first one's gradients
        with B.record():
            # Parameter 1 is used twice: both uses must be in.
            y = chain(B, params, device) + (params[1] * params[1]).sum()
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
        with B.on_grad_ready(params, ready):
            backward(B, params, device)
        return [B.numpy(B.grad(p)) for p in params]

    plain, doubled = gradients(lambda i: None), gradients(double)
    for a, b in zip(plain, doubled, strict=True):
        np.testing.assert_array_equal(2 * a, b)


def test_each_is_reported_once_from_the_last_and_the_unreached_too(B, device):
    params = attached(B, device, (3, 4), (9, 9), (4, 2), (7,))
    told = []
    with B.on_grad_ready(params, told.append):
        backward(B, [params[0], params[2]], device)
    assert sorted(told) == [0, 1, 2, 3]
    assert [i for i in told if i in (0, 2)] == [2, 0]


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_reported_after_the_block(B, device, fails):
    params, told = attached(B, device, (2, 2)), []
    with suppress(ZeroDivisionError), B.on_grad_ready(params, told.append):
        if fails:
            raise ZeroDivisionError
        backward(B, params, device)
    backward(B, params, device)
    assert told == ([] if fails else [0])
