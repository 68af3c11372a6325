"""Ranks whose settings differ are refused before the first step, by name and value."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, replace
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
from d2lmulti.optimizers import SGD, Adam
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.process_group import started
from d2lmulti.training.history import describe, fingerprint, logits_of, shorten

SMALL = make_mlp("small", (784, 8, 10))
RNG = np.random.default_rng(0)
DATA = d2lmulti.Dataset(
    "noise", RNG.normal(size=(12, 1, 28, 28)), RNG.integers(0, 10, 12),
    RNG.normal(size=(4, 1, 28, 28)), RNG.integers(0, 10, 4), tuple("0123456789"),
)  # fmt: skip
PIPELINE = {"strategy": "pipeline", "model": "deep_mlp"}


class MySGD(SGD):
    """An optimizer with settings of its own and without a `repr`."""

    __repr__ = object.__repr__

    def __init__(self, damping: float) -> None:
        super().__init__()
        object.__setattr__(self, "damping", damping)


def other_data() -> d2lmulti.Dataset:
    X = DATA.train_X.copy()
    X[3, 0, 5, 5] += 1e-9
    return replace(DATA, train_X=X)


def other_forward(B: Any, params: Any, X: Any) -> Any:
    return SMALL.forward(B, params, X * 2)


def scaled(factor: float) -> Any:
    def forward(B: Any, params: Any, X: Any) -> Any:
        return SMALL.forward(B, params, X * factor)

    return forward


def with_default(factor: float) -> Any:
    def forward(B: Any, params: Any, X: Any, factor: float = factor) -> Any:
        return SMALL.forward(B, params, X * factor)

    return forward


class Scaling:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def forward(self, B: Any, params: Any, X: Any) -> Any:
        return SMALL.forward(B, params, X * self.factor)


def other_schedule(p: int, m: int, v: int) -> Any:
    return SCHEDULES["gpipe"](p, m, v)


def same_schedule(p: int, m: int, v: int) -> Any:
    return SCHEDULES["1f1b"](p, m, v)


def ranked_schedule(p: int, m: int, v: int) -> Any:
    """One function that makes other lists in another process."""
    group = started()
    name = "gpipe" if group is not None and group.leader else "1f1b"
    return SCHEDULES[name](p, m, v)


# Setting -> what rank 0 has, what rank 1 has, and what the error says.
Case = tuple[dict[str, Any], dict[str, Any], str]
CASES: dict[str, Case] = {
    "lr": ({"lr": 0.1}, {"lr": 0.2}, "lr 0.1 on rank 0 and 0.2 on rank 1;"),
    "seed": ({"seed": 1}, {"seed": 2}, "seed 1 on rank 0 and 2 on rank 1;"),
    "optimizer": (
        {"optimizer": "sgd"}, {"optimizer": "adam"},
        "optimizer SGD(momentum=0.9) on rank 0 and Adam(",
    ),
    "its settings": (
        {"optimizer": Adam(beta2=0.9)}, {"optimizer": Adam(beta2=0.99)},
        "optimizer Adam(beta1=0.9, beta2=0.9,",
    ),
    "one's own": (
        {"optimizer": MySGD(0.1)}, {"optimizer": MySGD(0.2)},
        "optimizer MySGD(momentum=0.0, damping=0.1) on rank 0 and MySGD(",
    ),
    "momentum": (
        {"momentum": 0.5}, {"momentum": 0.6}, "momentum 0.5 on rank 0 and 0.6 on",
    ),
    "model": ({}, {"model": make_mlp("other", (784, 8, 10))}, "model [[small"),
    "its structure": ({}, {"model": make_mlp("small", (784, 9, 10))}, "model [[small"),
    "its functions": (
        {}, {"model": SMALL._replace(forward=other_forward)}, "model [[small",
    ),
    "its closure": (
        {"model": SMALL._replace(forward=scaled(1))},
        {"model": SMALL._replace(forward=scaled(2))}, "model [[small",
    ),
    "its defaults": (
        {"model": SMALL._replace(forward=with_default(1))},
        {"model": SMALL._replace(forward=with_default(2))}, "model [[small",
    ),
    "its object": (
        {"model": SMALL._replace(forward=Scaling(1).forward)},
        {"model": SMALL._replace(forward=Scaling(2).forward)}, "model [[small",
    ),
    "batch size": ({}, {"batch_size": 5}, "batch_size 6 on rank 0 and 5 on rank 1;"),
    "dtype": (
        {"dataset": "digits", "dtype": "float32"},
        {"dataset": "digits", "dtype": "float64"},
        "dtype float32 on rank 0 and float64 on rank 1;",
    ),
    "epochs": ({}, {"epochs": 2}, "epochs 1 on rank 0 and 2 on rank 1;"),
    "algorithm": (
        {"algorithm": "ring"}, {"algorithm": "tree"},
        "algorithm ring on rank 0 and tree on rank 1;",
    ),
    "buckets": ({}, {"bucket_bytes": 99}, "bucket_bytes None on rank 0 and 99 on"),
    "strategy": (
        {"model": "mlp"}, {"model": "mlp", "strategy": "tensor"},
        "strategy data on rank 0 and tensor on rank 1;",
    ),
    "schedule": (
        PIPELINE, PIPELINE | {"schedule": "gpipe"},
        "schedule 1f1b on rank 0 and gpipe on rank 1;",
    ),
    "its lists": (
        PIPELINE | {"schedule": same_schedule}, PIPELINE | {"schedule": other_schedule},
        "schedule [[Forward(",
    ),
    "its lists here": (
        PIPELINE | {"schedule": ranked_schedule},
        PIPELINE | {"schedule": ranked_schedule}, "schedule [[Forward(",
    ),
    "micro-batches": (
        PIPELINE | {"micro_batches": 2}, PIPELINE | {"micro_batches": 3},
        "micro_batches 2 on rank 0 and 3 on rank 1;",
    ),
    "stages": (
        PIPELINE | {"schedule": "interleaved", "stages": 4},
        PIPELINE | {"schedule": "interleaved", "stages": 2},
        "stages 4 on rank 0 and 2 on rank 1;",
    ),
    "data": ({}, {"dataset": other_data()}, "data Dataset(name=noise"),
    "checkpoint": (
        {"checkpoint": "a.npz"}, {"checkpoint": "b.npz"},
        "checkpoint a.npz on rank 0 and b.npz on rank 1;",
    ),
    "saving": (
        {"checkpoint": "a.npz", "save_every": 1}, {"checkpoint": "a.npz"},
        "save_every 1 on rank 0 and None on rank 1;",
    ),
    "resuming": (
        {"checkpoint": "a.npz"}, {"checkpoint": "a.npz", "resume": True},
        "resume False on rank 0 and True on rank 1;",
    ),
    "start": (
        {"checkpoint": "a.npz", "resume": True},
        {"checkpoint": "a.npz", "resume": True},
        "start [0, 0, ",
    ),
}  # fmt: skip
A_FEW = ("lr", "seed", "its settings", "data", "its lists")


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
        ("torch", "torch", list(A_FEW)),
        ("paddle", "paddle", list(A_FEW)),
        ("horovod", "mxnet", list(A_FEW[:4])),
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
            assert error.startswith("expected the same settings in every process, got ")
            assert CASES[name][2] in error


@dataclass
class Plain:
    x: int = 1


class Bare:
    def __init__(self, x: int) -> None:
        self.x = x


def test_what_is_equal_is_described_alike() -> None:
    def inner(x: int) -> bool:
        return x in {"a", "b", "c"}  # a frozenset, whose order differs by process

    assert describe(Plain()) == "Plain(x=1)"
    assert describe(Bare(2)) == describe(Bare(2)) != describe(Bare(3))
    assert describe(inner) == describe(inner) != describe(lambda x: x)
    assert describe(partial(inner, 1)) != describe(partial(inner, 2))
    assert describe(np.arange(3)) == describe(np.arange(3)) != describe(np.arange(4))
    assert describe([1, (2.5, "x", None)]) == "[1, [2.5, x, None]]"
    assert len(shorten(describe(list(range(1000))))) < 60
    assert describe({"f": inner}) == describe({"f": inner})


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InvalidInput, match="compare"):
        describe(np.random.default_rng(0))  # its repr hides its state
    with pytest.raises(InvalidInput, match="compare"):
        describe([object()])

    def recursive(n: int) -> int:
        return recursive(n - 1) if n else 0

    with pytest.raises(InvalidInput, match="compare"):
        describe(recursive)  # its closure contains itself
