"""A run that stops and goes on is the run that never stopped."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from backends.compare import weights

from d2lmulti import load, train
from d2lmulti.errors import InvalidInput
from d2lmulti.files import locked
from d2lmulti.models import get_model
from d2lmulti.optimizers import SGD, Adam
from d2lmulti.training.rate import Schedule
from d2lmulti.training.strategies import DataParallel


def run(backend, data, k=1, model="mlp", **settings):
    settings = {"epochs": 2, "lr": 0.02, "dtype": "float64", **settings}
    return train(k, 64, dataset=data, model=model, backend=backend.name, **settings)


class Killed(BaseException):
    """What ends a run in the middle."""


def stop_after(monkeypatch, steps):
    """Kill the run at the start of a step."""
    taken, step = [], DataParallel.step

    def counted(self, *arguments):
        taken.append(1)
        if len(taken) > steps:
            raise Killed
        return step(self, *arguments)

    monkeypatch.setattr(DataParallel, "step", counted)


def interrupted(monkeypatch, backend, data, path, steps, k=1, **settings):
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(Killed):
            run(backend, data, k, checkpoint=path, save_every=1, **settings)


def same_bits(B, one, other):
    return one.losses == other.losses and all(
        np.array_equal(p, q)
        for mine, theirs in zip(weights(B, one), weights(B, other), strict=True)
        for p, q in zip(mine, theirs, strict=True)
    )


def close(B, C, one, other):
    (p, *_), (q, *_) = weights(B, one), weights(C, other)
    return all(
        np.abs(x - y).max() <= 1e-12 * np.abs(y).max()
        for x, y in zip(p, q, strict=True)
    )


@pytest.mark.parametrize(("k", "steps"), [(3, 0), (3, 1), (3, 3), (1, 4)])
def test_on_as_many_devices_it_goes_on_bit_for_bit(
    B, digits, tmp_path, monkeypatch, k, steps
):
    whole, path = run(B, digits, k), tmp_path / "run.npz"
    interrupted(monkeypatch, B, digits, path, steps, k)
    assert path.exists() == (steps > 0)
    again = run(B, digits, k, checkpoint=path, resume=True)
    assert same_bits(B, again, whole)
    assert again.accuracies == whole.accuracies
    assert again.bytes_moved == whole.bytes_moved


@pytest.mark.parametrize("optimizer", [SGD(), Adam(eps=1e-3)], ids=["sgd", "adam"])
def test_every_optimizer_keeps_its_state(
    framework, digits, tmp_path, monkeypatch, optimizer
):
    settings = {"optimizer": optimizer, "k": 2, "path": tmp_path / "run.npz"}
    interrupted(monkeypatch, framework, digits, steps=4, **settings)
    more = {"optimizer": optimizer}
    again = run(framework, digits, 2, checkpoint=settings["path"], resume=True, **more)
    assert same_bits(framework, again, run(framework, digits, 2, **more))


def test_statistics_of_every_replica_are_saved(
    framework, digits, tmp_path, monkeypatch
):
    few, path = digits.first(70), tmp_path / "run.npz"
    common = {"model": "lenet_bn", "epochs": 1}
    interrupted(monkeypatch, framework, few, path, 1, 2, **common)
    again = run(framework, few, 2, checkpoint=path, resume=True, **common)
    assert same_bits(framework, again, run(framework, few, 2, **common))


ELSEWHERE = [
    {"k": 3},
    {"k": 2, "strategy": "tensor"},
    {"k": 2, "strategy": "pipeline", "micro_batches": 2},
]


@pytest.mark.parametrize("optimizer", ["sgd", Adam(eps=1e-3)], ids=["sgd", "adam"])
def test_on_other_devices_and_strategies_it_goes_on_up_to_rounding(
    framework, digits, tmp_path, monkeypatch, optimizer
):
    whole = run(framework, digits, 1, optimizer=optimizer)
    for i, split in enumerate(ELSEWHERE):
        path = tmp_path / f"{i}.npz"
        interrupted(monkeypatch, framework, digits, path, 4, 2, optimizer=optimizer)
        again = run(
            framework, digits, checkpoint=path, resume=True, optimizer=optimizer,
            **split,
        )  # fmt: skip
        assert close(framework, framework, again, whole)
        assert again.losses == pytest.approx(whole.losses, rel=1e-12)


def test_another_strategy_saves_what_data_parallelism_can_read(
    framework, digits, tmp_path
):
    whole = run(framework, digits, 1)
    for split in ELSEWHERE[1:]:
        path = tmp_path / f"{split['strategy']}.npz"
        run(framework, digits, epochs=1, checkpoint=path, **split)
        again = run(framework, digits, 3, checkpoint=path, resume=True)
        assert close(framework, framework, again, whole)


@pytest.mark.parametrize("second", ["torch", "mxnet", "paddle"])
def test_another_framework_goes_on(
    framework, load, digits, tmp_path, monkeypatch, second
):
    path, other = tmp_path / "run.npz", load(second)
    interrupted(monkeypatch, framework, digits, path, 4, 2)
    again = run(other, digits, 3, checkpoint=path, resume=True)
    assert close(other, framework, again, run(framework, digits))


def test_a_finished_run_is_not_repeated(B, digits, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    whole = run(B, digits, checkpoint=path)
    stop_after(monkeypatch, 0)
    assert same_bits(B, run(B, digits, checkpoint=path, resume=True), whole)


# -- what may go wrong -----------------------------------------------------------------


@pytest.fixture
def saved(reference, digits, tmp_path):
    path = tmp_path / "run.npz"
    run(reference, digits, epochs=1, checkpoint=path)
    return path


REFUSED = {
    "another model": ({"model": "deep_mlp"}, "model 'mlp'.*got 'deep_mlp'"),
    "another seed": ({"seed": 1}, "seed 0.*got 1"),
    "another dtype": ({"dtype": "float32", "dataset": "digits"}, "dataset|dtype"),
    "another optimizer": ({"optimizer": "adam"}, "optimizer 'sgd'.*got 'adam'"),
    "no momentum": ({"momentum": 0.0}, "0 arrays.*got 4.*momentum"),
    "a file that is there": ({"resume": False}, "exists"),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_what_does_not_go_on_is_refused(reference, digits, saved, cause):
    settings, message = REFUSED[cause]
    settings = {"checkpoint": saved, "resume": True, **settings}
    if "dataset" in settings:
        digits = load("digits", "float32").first(150)
        del settings["dataset"]
    with pytest.raises(InvalidInput, match=message):
        run(reference, digits, **settings)


def test_what_is_refused_is_not_touched(reference, digits, saved, monkeypatch):
    stop_after(monkeypatch, 0)  # no step, or it would be killed
    before = saved.read_bytes()
    for settings in ({}, {"model": "deep_mlp", "resume": True}):
        with pytest.raises(InvalidInput):
            run(reference, digits, checkpoint=saved, **settings)
    unchanged = saved.read_bytes() == before
    assert unchanged and os.listdir(saved.parent) == [saved.name]


def test_a_second_run_on_the_same_file_is_refused(reference, digits, saved):
    with locked(saved), pytest.raises(InvalidInput, match="another run"):
        run(reference, digits, checkpoint=saved, resume=True)
    run(reference, digits, checkpoint=saved, resume=True)


@dataclass(frozen=True)
class Halving(Schedule):
    """A schedule that says the same of itself and means something else."""

    meant: ClassVar[int] = 2

    def rate(self, step):
        return 0.02 / (1 + step // self.meant)


def test_a_run_goes_on_with_its_data_its_model_and_its_schedule_only(
    B, digits, tmp_path, monkeypatch
):
    path = tmp_path / "run.npz"
    run(B, digits, checkpoint=path, epochs=1, lr=Halving())
    before = path.read_bytes()
    X = digits.train_X.copy()
    X[-1, 0, 5, 5] += 1e-9
    mlp = get_model("mlp")
    wider = mlp._replace(forward=lambda B, params, X: mlp.forward(B, params, X * 2))
    resumed = partial(run, B, checkpoint=path, resume=True, lr=Halving())
    with pytest.raises(InvalidInput, match="data"):
        resumed(replace(digits, train_X=X))
    with pytest.raises(InvalidInput, match="logits"):
        resumed(digits, model=wider)
    with monkeypatch.context() as patch, pytest.raises(InvalidInput, match="rates"):
        patch.setattr(Halving, "meant", 1)
        resumed(digits)
    assert path.read_bytes() == before
    assert len(resumed(digits).losses) == 2
