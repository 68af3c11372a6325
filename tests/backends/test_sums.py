"""Losses add up the same in one go, in parts and over processes, on every Python.

Since Python 3.12 the built-in `sum` of floats carries its rounding errors along, so
the sum of a whole is no longer the sum of its parts. Here every Python has that `sum`.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from d2lmulti import get_backend, load, train
from d2lmulti.observe.ledger import Ledger
from d2lmulti.training.history import EpochTotals

SUM = builtins.sum


def compensated(values, start=0):
    """Add as Python 3.12 does: Neumaier's sum where all are floats."""
    values = [start, *values]
    if not all(type(v) in (int, float) for v in values):
        return SUM(values[1:], start)
    total, lost = values[0], 0.0
    for v in values[1:]:
        new = total + v
        lost += (total - new) + v if abs(total) >= abs(v) else (v - new) + total
        total = new
    return total + lost if isinstance(total, float) else total


@pytest.fixture(autouse=True)
def sum_of_python_3_12(monkeypatch):
    monkeypatch.setattr(builtins, "sum", compensated)
    assert sum([0.1] * 10) == 1.0 and sum([1, 2]) == 3  # 3.11's own: 0.9999999999999999


def summed(steps, at_once, group):
    """Add up the losses of some steps, `at_once` steps at a time."""
    totals, loss = EpochTotals(group, Ledger(), 0, 0), 0.0
    for first in range(0, len(steps), at_once):
        for losses in steps[first : first + at_once]:
            totals.steps.append((losses, 1))
        loss, _, _ = totals.collect(loss)
    return loss


def test_the_sum_of_the_parts_is_the_sum_of_the_whole():
    B = get_backend("numpy")
    alone = SimpleNamespace(is_distributed=False)
    numbers = np.random.default_rng(0).uniform(0, 3, (50, 2))
    steps = [[B.array(x) for x in row] for row in numbers]
    whole = summed(steps, 50, alone)
    assert whole != compensated(numbers.ravel().tolist(), 0.0)  # so the order shows
    assert {summed(steps, n, alone) for n in (1, 7, 49)} == {whole}

    class Process:  # that of rank 0, with rank 1's answers
        is_distributed, local_ranks = True, [0]

        @property
        def engine(self):
            return SimpleNamespace(allgather_text=self.allgather_text)

        def allgather_text(self, text):
            mine, seconds, received = json.loads(text)
            theirs = [[float(x)] for _, x in numbers[: len(mine)]]
            return [text, json.dumps([theirs, seconds, received])]

    assert summed([row[:1] for row in steps], 50, Process()) == whole


@pytest.mark.dealt
def test_saving_within_an_epoch_leaves_its_loss_alone(framework, tmp_path):
    data = load("digits", "float64").first(150)
    data = replace(data, test_X=data.test_X[:20], test_y=data.test_y[:20])
    run = partial(
        train, 1, 5, epochs=5, lr=0.02, dtype="float64", dataset=data, model="mlp",
        backend=framework.name,
    )  # fmt: skip
    saved = run(checkpoint=tmp_path / "run.npz", save_every=1)
    assert saved.losses == run().losses
