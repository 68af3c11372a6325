"""Ranks whose settings differ are refused before the first step, by name and value."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.staying import Staying, started_once

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import make_mlp
from d2lmulti.optimizers import Adam
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.process_group import started
from d2lmulti.training.history import describe, fingerprint, logits_of, shorten
from d2lmulti.training.rate import GradualWarmup

SMALL = make_mlp("small", (784, 8, 10))
RNG = np.random.default_rng(0)
DATA = d2lmulti.Dataset(
    "noise", RNG.normal(size=(12, 1, 28, 28)), RNG.integers(0, 10, 12),
    RNG.normal(size=(4, 1, 28, 28)), RNG.integers(0, 10, 4), tuple("0123456789"),
)  # fmt: skip
PIPELINE = {"strategy": "pipeline", "model": "deep_mlp"}


def other_data() -> d2lmulti.Dataset:
    X = DATA.train_X.copy()
    X[3, 0, 5, 5] += 1e-9
    return replace(DATA, train_X=X)


def scaled(factor: float) -> Any:
    def forward(B: Any, params: Any, X: Any) -> Any:
        return SMALL.forward(B, params, X * factor)

    return SMALL._replace(forward=forward)


def ranked_schedule(p: int, m: int, v: int) -> Any:
    """One function that makes other lists in another process."""
    group = started()
    name = "gpipe" if group is not None and group.leader else "1f1b"
    return SCHEDULES[name](p, m, v)


# What differs -> what rank 0 has, what rank 1 has, and what the error says.
Case = tuple[dict[str, Any], dict[str, Any], str]
RESUMED = {"checkpoint": "a.npz", "resume": True}
LISTS = PIPELINE | {"schedule": ranked_schedule}
CASES: dict[str, Case] = {
    "an optimizer's settings": (
        {"optimizer": Adam(beta2=0.9)}, {"optimizer": Adam(beta2=0.99)}, "optimizer",
    ),
    "data": ({}, {"dataset": other_data()}, "data "),
    "lists made here": (LISTS, LISTS, "schedule"),
    "a model": ({}, {"model": make_mlp("small", (784, 9, 10))}, "model"),
    "a closure": ({"model": scaled(1)}, {"model": scaled(2)}, "model"),
    "dtype": (
        {"dataset": "digits"}, {"dataset": "digits", "dtype": "float32"},
        "dtype float64",
    ),
    "strategy": ({"model": "mlp"}, {"model": "mlp", "strategy": "tensor"}, "strategy"),
    "micro-batches": (PIPELINE, PIPELINE | {"micro_batches": 3}, "micro_batches"),
    "saving": (RESUMED | {"save_every": 1}, RESUMED, "save_every"),
    "resuming": (RESUMED | {"resume": False}, RESUMED, "resume False on rank 0"),
    "start": (RESUMED, RESUMED, "start [0, 0, "),
}  # fmt: skip
# A setting, and its value on rank 0 and on rank 1.
for setting, one, other in [
    ("lr", 0.1, 0.2), ("seed", 1, 2), ("batch_size", 6, 5), ("epochs", 1, 2),
    ("algorithm", "ring", "tree"), ("bucket_bytes", None, 99),
    ("lr", GradualWarmup(0.1, 3, 0.2), GradualWarmup(0.1, 4, 0.2)),
]:  # fmt: skip
    fact = f"{setting} {one} on rank 0 and {other} on rank 1;"
    CASES[f"{setting} {other}"] = {setting: one}, {setting: other}, fact
A_FEW = ["lr 0.2", *list(CASES)[:4]]


def differing(folder: str, names: list[str]) -> dict[str, str]:
    """Train with each case's settings; give the refusals. Each process steps once."""
    group = started()
    assert group is not None
    (rank,) = group.local_ranks
    here = Path(folder) / f"machine {rank}"  # as if each had a disk of its own
    here.mkdir()
    with chdir(here):
        found = refusals(rank, group.size, names)
    made = os.listdir(here)
    assert made in ([], ["a.npz"]), made  # nothing was trained or saved
    return found


def refusals(rank: int, size: int, names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        options = {"batch_size": 6, "epochs": 1, "dtype": "float64", "model": SMALL,
                   "dataset": DATA, **CASES[name][rank]}  # fmt: skip
        if name == "start" and rank:  # the checkpoint of another run lies on its disk
            d2lmulti.training.checkpoint.save_checkpoint("a.npz", another(options))
        try:
            d2lmulti.train(size, **options)
        except InvalidInput as error:
            found[name] = str(error)
    return found


def another(options: dict[str, Any]) -> Any:
    """Make a checkpoint of a run that differs in its weights alone."""
    from d2lmulti.training.checkpoint import Checkpoint

    rng = np.random.default_rng(9)
    settings = {**options, "model": "small", "dataset": "noise", "seed": 0}
    settings |= {"momentum": 0.9, "optimizer": "sgd", "lr": 0.05}
    initial = [p.astype("float64") for p in SMALL.initial(np.random.default_rng(0))]
    settings |= fingerprint(DATA, 0.05, 2)
    settings["logits"] = logits_of(d2lmulti.get_backend(), DATA, SMALL, initial)
    params = [p.astype("float64") for p in SMALL.initial(rng)]
    state = [np.zeros_like(p) for p in params]
    fixed = {
        k: v for k, v in settings.items() if isinstance(v, (str, int, float, list))
    }
    return Checkpoint(fixed, params=params, state=state)


ENGINES = [
    pytest.param(engine, backend, names, marks=started_once(engine, backend, 2))
    for engine, backend, names in [
        ("shared_memory", "numpy", list(CASES)),
        ("torch", "torch", A_FEW),
        ("paddle", "paddle", A_FEW),
        ("horovod", "mxnet", A_FEW[:4]),
    ]
]


@pytest.mark.parametrize(("engine", "backend", "names"), ENGINES)
def test_other_settings_are_refused_before_the_first_step(
    engine: str,
    backend: str,
    names: list[str],
    load: Callable[[str], Backend],
    staying: Staying,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    load(backend)
    if engine == "horovod":
        request.getfixturevalue("horovod")
    for found in staying(engine, backend, 2)(differing, str(tmp_path), names):
        assert list(found) == names
        for name, error in found.items():
            assert f" {CASES[name][2]}" in error


class Bare:
    def __init__(self, x: int) -> None:
        self.x = x


def test_what_is_equal_is_described_alike() -> None:
    def inner(x: int, factor: int = 2) -> bool:
        return x * factor in {"a", "b", "c"}  # whose order differs by process

    def other(x: int, factor: int = 3) -> bool:
        return x * factor in {"a", "b", "c"}

    assert describe(Bare(2)) == describe(Bare(2)) != describe(Bare(3))
    assert describe(inner) == describe(inner) != describe(other)
    assert describe(partial(inner, 1)) != describe(partial(inner, 2))
    assert describe(np.arange(3)) == describe(np.arange(3)) != describe(np.arange(4))
    assert describe([1, (2.5, "x", None)]) == "[1, [2.5, x, None]]"
    assert len(shorten(describe(list(range(1000))))) < 60


def test_what_cannot_be_compared_is_refused() -> None:
    def recursive(n: int) -> int:
        return recursive(n - 1) if n else 0  # its closure contains itself

    hidden = np.random.default_rng(0)  # its repr hides its state
    for value in (hidden, [object()], recursive):
        with pytest.raises(InvalidInput, match="compare"):
            describe(value)
