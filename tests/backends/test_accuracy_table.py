"""The script behind the promise "97 % on every backend, for every seed"."""

import accuracy_table
import numpy as np
import pytest

from d2lmulti import History
from d2lmulti.training.history import Epoch


@pytest.fixture
def results(monkeypatch):
    """Stand-ins for training: (backend, devices, seed) -> last loss and accuracy."""
    found = {}

    def train(k, *, seed, backend, epochs, **_):
        loss, accuracy = found.get((backend, k, seed), (0.5, 0.98))
        return History({}, [], [Epoch(1.0, 0.9, 0.1, 0), Epoch(loss, accuracy, 0.1, 0)])

    monkeypatch.setattr(accuracy_table, "train", train)
    return found


RUN = ["--backends", "torch", "mxnet", "--devices", "1", "3", "--seeds", "2"]


def test_the_last_epoch_of_every_run_is_in_the_table(results, capsys):
    results["mxnet", 3, 1] = 0.5, 0.97
    assert accuracy_table.main(RUN) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["seed", "torch", "x1", "torch", "x3", "mxnet", "x1", "mxnet", "x3"],
        ["0", "0.9800", "0.9800", "0.9800", "0.9800"],
        ["1", "0.9800", "0.9800", "0.9800", "0.9700"],
        ["least", "0.9800", "0.9800", "0.9800", "0.9700"],
    ]


@pytest.mark.parametrize("accuracy", [0.9699, np.nan])
def test_one_run_under_97_percent_is_too_many(results, capsys, accuracy):
    results["torch", 3, 1] = 0.5, accuracy
    assert accuracy_table.main(RUN) == 1
    assert "under 97%: torch on 3 devices, seed 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loss", "status"), [(0.5000001, 0), (0.500001, 1), (np.nan, 1), (0.499999, 1)]
)
def test_losses_agree_in_six_digits(results, capsys, loss, status):
    results["mxnet", 1, 0] = loss, 0.0
    assert accuracy_table.main([*RUN, "--losses"]) == status
    assert "seed 0: 1 0.5\n" in capsys.readouterr().out


def test_it_trains(B, capsys):
    run = ["--backends", B.name, "--devices", "1", "2", "--seeds", "1"]
    assert (
        accuracy_table.main([*run, "--model", "mlp", "--losses", "--epochs", "1"]) == 0
    )
    assert f"{B.name} on 2: at most " in capsys.readouterr().out
