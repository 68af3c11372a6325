"""The transformer: causal, equal on every framework, and trained by the library."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_close

from d2lmulti import devices, get_params, load, train, train_batch
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import InvalidInput
from d2lmulti.models.transformer import embed, make_transformer
from d2lmulti.optimizers import Adam

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


@pytest.mark.parametrize("k", [2, 3])
def test_replicas_equal_one_device_with_adam(framework: Backend, k: int) -> None:
    B, optimizer = framework, Adam()
    rng = np.random.default_rng(2)
    batches = [rng.integers(0, 7, (5, 7)) for _ in range(4)]
    after = []
    for count in (1, k):
        places = devices(count, B.name)
        device_params = [get_params(start(B), place) for place in places]
        states = [optimizer.init(params) for params in device_params]
        for ids in batches:
            X, y = B.array(ids[:, :-1]), B.array(ids[:, 1:])
            train_batch(
                X, y, device_params, places, 0.01,
                model=SMALL, optimizer=optimizer, states=states,
            )  # fmt: skip
        after.append([[B.numpy(p) for p in params] for params in device_params])
    for replica in after[1]:
        # Adam divides by sqrt(v): a gradient that is zero but for rounding would not
        # be equal, such as that of the keys' bias, which softmax cancels.
        for i, (got, want) in enumerate(zip(replica, after[0][0], strict=True)):
            if i == 5:
                got, want = (np.delete(b, np.s_[8:16]) for b in (got, want))
            assert np.abs(got - want).max() <= 1e-9 * np.abs(want).max()
        for got, first in zip(replica, after[1][0], strict=True):
            assert (got == first).all()


def test_train_takes_the_text(framework: Backend) -> None:
    history = train(
        2, 32, 0.5, epochs=1, dataset=load("text").first(64), model=SMALL_OF_TEXT,
        backend=framework.name,
    )  # fmt: skip
    assert 2 < history.losses[0] < 5
    assert 0 <= history.accuracies[0] < 1


@pytest.mark.dealt
def test_it_learns_the_same_however_it_is_split(framework: Backend) -> None:
    """Below two nats a character; alone, split by layer and by stage alike."""
    some, losses = load("text", "float64").first(64), {}
    model = make_transformer("small", width=16, heads=4, blocks=2)
    for strategy, k in [("data", 1), ("tensor", 4), ("pipeline", 4)]:
        losses[strategy] = train(
            k, 16, 0.03, epochs=7, dataset=some, model=model, optimizer="adam",
            strategy=strategy, dtype="float64", backend=framework.name,
        ).losses  # fmt: skip
    assert losses["data"][0] > 3 and losses["data"][-1] < 2
    for strategy in ("tensor", "pipeline"):
        assert np.allclose(losses[strategy], losses["data"], rtol=1e-3)


SMALL_OF_TEXT = make_transformer("small", width=8, heads=2, blocks=1)


def test_what_does_not_fit_is_refused(B: Backend) -> None:
    with pytest.raises(InvalidInput, match="divide the width of 48, got 7; use 6"):
        make_transformer("x", width=48, heads=7)
    with pytest.raises(InvalidInput, match="at most 6 tokens .* got 9"):
        embed(B, start(B)[:2], B.array(np.zeros((1, 9), "int64")))
