"""The transformer: causal, equal on every framework, and trained by the library."""

from __future__ import annotations

import numpy as np
from backends.compare import assert_close

from d2lmulti import devices, get_params, train_batch
from d2lmulti.backends.protocol import Backend
from d2lmulti.models.transformer import make_transformer

SMALL = make_transformer("small", 7, context=6, width=8, heads=2, blocks=1)


def start(B: Backend) -> list:
    return [B.array(p) for p in SMALL.initial(np.random.default_rng(1))]


def test_logits_do_not_know_the_future(B: Backend) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (2, 5))
    changed = ids.copy()
    changed[:, 3:] = (ids[:, 3:] + 1) % 7
    with B.pause():
        first, second = (
            B.numpy(SMALL.forward_eval(B, start(B), B.array(x))).reshape((2, 5, 7))
            for x in (ids, changed)
        )
    assert np.abs(first[:, :3] - second[:, :3]).max() < 1e-12
    assert np.abs(first[:, 3:] - second[:, 3:]).min(axis=-1).max() > 1e-3


def test_the_past_matters(B: Backend) -> None:
    """The last character's logits depend on the first: attention looks back."""
    ids = np.random.default_rng(0).integers(0, 7, (1, 5))
    changed = ids.copy()
    changed[0, 0] = (ids[0, 0] + 1) % 7
    with B.pause():
        first, second = (
            B.numpy(SMALL.forward_eval(B, start(B), B.array(x))) for x in (ids, changed)
        )
    assert np.abs(first[-1] - second[-1]).max() > 1e-3


def test_gradients_equal_the_reference(framework: Backend, reference: Backend) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (3, 7))
    found = []
    for B in (framework, reference):
        places = devices(1, B.name)
        params = [get_params(start(B), place) for place in places]
        X, y = B.array(ids[:, :-1]), B.array(ids[:, 1:])
        train_batch(X, y, params, places, 1e-30, model=SMALL)
        found.append([B.numpy(B.grad(p)) for p in params[0]])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)
