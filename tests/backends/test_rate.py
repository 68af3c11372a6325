"""Schedules of the rate: their values, and the same training on every backend."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backends.test_checkpoint import interrupted, same_bits
from backends.test_checkpoint import run as run_saved

from d2lmulti.errors import InvalidInput
from d2lmulti.training.rate import (
    GradualWarmup,
    Schedule,
    StepDecay,
    make_rate,
    rate_at,
)

RATES = {
    0.2: [0.2] * 7,
    make_rate(0.2): [0.2] * 7,
    make_rate(0.4, 4): [0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.4],
    GradualWarmup(0.1, 4, 0.5): [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5],
    StepDecay(0.8, (2, 5), 0.25): [0.8, 0.8, 0.2, 0.2, 0.2, 0.05, 0.05],
    GradualWarmup(0.2, 2, StepDecay(0.4, [3])): [0.2, 0.3, 0.4, 0.04, 0.04, 0.04, 0.04],
    # Down to what a decay has left at the end of the warm-up, not to its beginning.
    GradualWarmup(0.3, 2, StepDecay(1.0, [1])): [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1],
}


@pytest.mark.parametrize("lr", RATES, ids=str)
def test_the_rate_of_every_step(lr):
    assert [rate_at(lr, t) for t in range(7)] == pytest.approx(RATES[lr], rel=1e-12)


SCHEDULE = GradualWarmup(0.01, 3, StepDecay(0.05, (4, 5), 0.5))


@pytest.mark.parametrize("steps", [1, 4])
def test_a_run_that_goes_on_goes_on_in_its_schedule(
    framework, digits, tmp_path, monkeypatch, steps
):
    path, scheduled = tmp_path / "run.npz", {"lr": SCHEDULE}
    whole = run_saved(framework, digits, 2, **scheduled)
    interrupted(monkeypatch, framework, digits, path, steps, 2, **scheduled)
    again = run_saved(framework, digits, 2, checkpoint=path, resume=True, **scheduled)
    assert same_bits(framework, again, whole)
    assert whole.losses != run_saved(framework, digits, 2, lr=0.05).losses


@pytest.mark.parametrize(
    ("saved", "asked"),
    [
        ({"lr": SCHEDULE}, {"lr": 0.05}),
        ({"lr": 0.05}, {"lr": SCHEDULE}),
        ({"lr": SCHEDULE}, {"lr": replace(SCHEDULE, steps=4)}),
        ({"lr": 0.05, "warmup": 3}, {"lr": 0.05, "warmup": 4}),
        ({"lr": 0.05, "warmup": 3}, {"lr": 0.06, "warmup": 3}),
    ],
)
def test_a_checkpoint_of_another_schedule_is_refused(
    reference, digits, tmp_path, saved, asked
):
    path = tmp_path / "run.npz"
    run_saved(reference, digits, epochs=1, checkpoint=path, **saved)
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="run.npz was saved with: lr .*got"):
        run_saved(reference, digits, checkpoint=path, resume=True, **asked)
    assert path.read_bytes() == before


def test_another_number_as_the_rate_is_a_choice(reference, digits, tmp_path):
    path = tmp_path / "run.npz"
    run_saved(reference, digits, epochs=1, checkpoint=path, lr=0.05)
    assert run_saved(reference, digits, checkpoint=path, resume=True, lr=0.01).epochs


class Cosine(Schedule):
    """A schedule of the user's own, without a repr."""

    def __init__(self, steps):
        self.steps = steps

    def rate(self, step):
        return 0.05 * (1 + np.cos(np.pi * min(step / self.steps, 0.99)))


def test_a_schedule_of_the_users_own(reference, digits, tmp_path):
    path = tmp_path / "run.npz"
    run_saved(reference, digits, epochs=1, checkpoint=path, lr=Cosine(6))
    again = run_saved(reference, digits, checkpoint=path, resume=True, lr=Cosine(6))
    assert again.settings["lr"] == "Cosine(steps=6)"
    assert again.losses == run_saved(reference, digits, lr=Cosine(6)).losses
