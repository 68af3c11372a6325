"""`train(strategy=...)`: however the work is split, it is the same training."""

from __future__ import annotations

from dataclasses import replace

import pytest
from backends.compare import assert_near, weights

from d2lmulti import load, train
from d2lmulti.optimizers import Adam
from d2lmulti.plans.allreduce import ring

SPLITS = [
    {"strategy": "data", "num_gpus": 3},
    {"strategy": "tensor", "num_gpus": 2},
    {"strategy": "pipeline", "num_gpus": 2},
    {"strategy": "pipeline", "num_gpus": 3, "schedule": "gpipe", "micro_batches": 5},
    {"strategy": "pipeline", "num_gpus": 2, "schedule": "interleaved", "stages": 4},
    {"strategy": "pipeline", "num_gpus": 2, "schedule": "zb_v"},
    {"strategy": "mesh", "mesh": {"data": 2, "pipeline": 2}, "num_gpus": 4},
    {"strategy": "sharded", "num_gpus": 3, "zero": 3},
]


def run(B, data, model, optimizer="sgd", **settings):
    settings = {"num_gpus": 1, "batch_size": 64, "lr": 0.01, "epochs": 2, **settings}
    return train(
        dataset=data, model=model, optimizer=optimizer, dtype="float64",
        backend=B.name, **settings,
    )  # fmt: skip


def compare(B, history, alone):
    (expected,) = weights(B, alone)
    assert history.losses == pytest.approx(alone.losses, rel=1e-10)
    assert history.accuracies == alone.accuracies
    for whole in weights(B, history):
        assert_near(whole, expected, 1e-10)


@pytest.mark.dealt
@pytest.mark.parametrize("model", ["alexnet", "deep_mlp"])
def test_every_strategy_trains_like_one_device(framework, digits, model):
    alone = run(framework, digits, model)
    for split in SPLITS:
        compare(framework, run(framework, digits, model, **split), alone)


def test_a_text_too_with_adam(framework):
    text = load("text").first(24)
    text = replace(text, test_X=text.test_X[:4], test_y=text.test_y[:4])
    # The keys' bias has no gradient but rounding errors: a tiny eps would divide by it.
    settings = {"optimizer": Adam(eps=1e-3), "batch_size": 10, "epochs": 1}
    alone = run(framework, text, "transformer", **settings)
    for split in (*SPLITS[:3], SPLITS[-1]):
        history = run(framework, text, "transformer", **settings, **split)
        compare(framework, history, alone)


def test_a_plan_is_named_in_the_history(framework, digits):
    history = run(framework, digits, "mlp", num_gpus=2, algorithm=ring)
    assert history.as_json()["algorithm"] == "ring"
