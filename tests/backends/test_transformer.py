"""The transformer: causal, equal on every framework, and trained by the library."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_close, start

from d2lmulti import devices, get_params, train_batch
from d2lmulti.backends.protocol import Backend
from d2lmulti.models.transformer import make_transformer

SMALL = make_transformer("small", 7, context=6, width=8, heads=2, blocks=1)


@pytest.mark.parametrize("place", [0, 3])
def test_logits_know_the_past_and_not_the_future(B: Backend, place: int) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (2, 5))
    changed = ids.copy()
    changed[:, place] = (ids[:, place] + 1) % 7
    params = start(B, SMALL, seed=1)
    with B.pause():
        first, second = (
            B.numpy(SMALL.forward_eval(B, params, B.array(x))).reshape((2, 5, 7))
            for x in (ids, changed)
        )
    assert np.abs(first - second)[:, :place].max(initial=0) < 1e-12
    assert np.abs(first - second)[:, place:].max(axis=-1).min() > 1e-4


def test_gradients_equal_the_reference(framework: Backend, reference: Backend) -> None:
    ids = np.random.default_rng(0).integers(0, 7, (3, 7))
    found = []
    for B in (framework, reference):
        places = devices(1, B.name)
        params = [get_params(start(B, SMALL, seed=1), place) for place in places]
        X, y = B.array(ids[:, :-1]), B.array(ids[:, 1:])
        train_batch(X, y, params, places, 1e-30, model=SMALL)
        found.append([B.numpy(B.grad(p)) for p in params[0]])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)
