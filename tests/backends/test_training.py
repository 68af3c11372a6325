"""`train` and `evaluate`: the same run on every framework and number of devices."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import (
    arrays,
    assert_all_same_bits,
    assert_replicas,
    start,
    weights,
)

from d2lmulti import History, evaluate, get_model, get_params, train
from d2lmulti.backends.protocol import Backend
from d2lmulti.data import Dataset
from d2lmulti.training.rate import GradualWarmup, StepDecay

EXAMPLES, BATCH = 150, 64  # so the last batch of an epoch holds 22


def run(B: Backend, digits: Dataset, k: int = 1, **settings: object) -> History:
    """Train shortly in float64, unless told otherwise."""
    settings = {"epochs": 3, "dtype": "float64", **settings}
    return train(k, BATCH, dataset=digits, backend=B.name, **settings)


# -- the same run everywhere -----------------------------------------------------------


@pytest.mark.dealt
@pytest.mark.parametrize(
    ("model", "epochs"), [("lenet", 2), ("mlp", 3), ("lenet_sync_bn", 1)]
)
def test_two_and_three_devices_train_like_one(
    framework: Backend, digits: Dataset, model: str, epochs: int
) -> None:
    one = run(framework, digits, model=model, epochs=epochs)
    (expected,) = weights(framework, one)
    for k in (2, 3):
        several = run(framework, digits, k, model=model, epochs=epochs)
        assert several.losses == pytest.approx(one.losses, rel=1e-9)
        assert several.accuracies == one.accuracies
        assert_replicas(weights(framework, several), expected, 1e-9)


def test_every_framework_trains_like_the_reference(
    framework: Backend, reference: Backend, digits: Dataset
) -> None:
    theirs = run(reference, digits, model="lenet", epochs=1)
    ours = run(framework, digits, 2, model="lenet", epochs=1)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-9)
    assert ours.accuracies == theirs.accuracies


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_equals_plain_numpy(
    B: Backend, digits: Dataset, k: int, momentum: float
) -> None:
    """The whole loop once more, with nothing of the library but the first weights.

    The learning rates, over the end of an epoch, are written out by hand.
    """
    rates = iter([0.01, 0.01 + 0.04 / 3, 0.01 + 0.08 / 3, 0.05, 0.025, 0.0125])
    W1, b1, W2, b2 = params = get_model("mlp").initial(np.random.default_rng(3))
    velocities = [np.zeros_like(p) for p in params]
    losses = []
    for epoch in range(2):
        losses.append(0.0)
        order = np.random.default_rng([3, epoch]).permutation(EXAMPLES)
        for batch in np.split(order, range(BATCH, EXAMPLES, BATCH)):
            X, y = digits.train_X[batch].reshape(len(batch), -1), digits.train_y[batch]
            H = np.maximum(X @ W1 + b1, 0)
            e = np.exp(H @ W2 + b2)
            D = e / e.sum(1, keepdims=True)  # probabilities, then the logits' gradient
            losses[-1] -= np.log(D[np.arange(len(y)), y]).sum() / EXAMPLES
            D[np.arange(len(y)), y] -= 1
            D /= len(y)
            back = (D @ W2.T) * (H > 0)
            grads = X.T @ back, back.sum(0), H.T @ D, D.sum(0)
            lr = next(rates)
            for p, v, g in zip(params, velocities, grads, strict=True):
                v[...] = momentum * v + g
                p -= lr * v
    schedule = GradualWarmup(0.01, 3, StepDecay(0.05, (4, 5), 0.5))
    how = {"epochs": 2, "seed": 3, "momentum": momentum, "lr": schedule}
    history = run(B, digits, k, model="mlp", **how)
    assert history.losses == pytest.approx(losses, rel=1e-9)
    assert_replicas(weights(B, history), params, 1e-9)


def test_the_same_seed_gives_the_same_bits(B: Backend, digits: Dataset) -> None:
    first, again, other = (
        run(B, digits, 2, model="mlp", dtype="float64", seed=seed) for seed in (1, 1, 2)
    )
    assert first.losses == again.losses
    assert first.accuracies == again.accuracies
    assert_all_same_bits(weights(B, first), weights(B, again))
    assert all(a != b for a, b in zip(first.losses, other.losses, strict=True))


@pytest.mark.dealt
@pytest.mark.slow
def test_the_default_settings_reach_97_percent(framework: Backend) -> None:
    assert train(2, backend=framework.name).accuracies[-1] >= 0.97


# -- what the history says -------------------------------------------------------------


def test_devices_can_be_named_one_by_one(B: Backend, digits: Dataset) -> None:
    named = run(B, digits, model="mlp", devices=["cpu", "sim:1"], epochs=1)
    assert named.devices == ["cpu", "sim:1"]
    counted = run(B, digits, 2, model="mlp", epochs=1)
    assert named.losses == pytest.approx(counted.losses, rel=1e-9)


# -- evaluation ------------------------------------------------------------------------


def replicas(B: Backend, seeds: list[int]) -> list[list]:
    mlp = get_model("mlp")
    return [
        get_params(start(B, mlp, seed=seed), f"sim:{i}") for i, seed in enumerate(seeds)
    ]


def hits(params: list[np.ndarray], X: np.ndarray, y: np.ndarray) -> int:
    """Count in plain NumPy what a perceptron gets right."""
    W1, b1, W2, b2 = params
    logits = np.maximum(X.reshape(len(X), len(W1)) @ W1 + b1, 0) @ W2 + b2
    return int((logits.argmax(1) == y).sum())


@pytest.mark.parametrize("batch_size", [5, 97])
@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_evaluate_equals_a_count_in_numpy(
    B: Backend, digits: Dataset, k: int, batch_size: int
) -> None:
    """Every device judges its own shard, with parameters that may be its own.

    Two images are fewer than the devices.
    """
    model, places = get_model("mlp"), [f"sim:{i}" for i in range(k)]
    for seeds, n in (([0] * k, 97), (list(range(k)), 97), (list(range(k)), 2)):
        X, y, device_params = digits.test_X[:n], digits.test_y[:n], replicas(B, seeds)
        got = evaluate(device_params, X, y, places, model=model, batch_size=batch_size)
        shards = np.array_split(np.arange(len(X)), k)
        expected = sum(
            hits(params, X[shard], y[shard])
            for params, shard in zip(arrays(B, device_params), shards, strict=True)
        )
        assert got == expected / len(X)


def test_evaluation_takes_no_gradient_and_changes_nothing(
    B: Backend, digits: Dataset
) -> None:
    device_params = replicas(B, [0, 1])
    before = arrays(B, device_params)
    with B.record():
        evaluate(
            device_params, digits.test_X, digits.test_y, ["sim:0", "sim:1"],
            model=get_model("mlp"),
        )  # fmt: skip
    assert_all_same_bits(arrays(B, device_params), before)
    assert all((B.numpy(B.grad(p)) == 0).all() for ps in device_params for p in ps)
