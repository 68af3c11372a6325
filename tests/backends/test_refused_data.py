"""Data, labels, states and losses that are wrong: refused alike on all backends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from d2lmulti import Dataset, ledger, load, train
from d2lmulti.backends.protocol import Backend
from d2lmulti.errors import Diverged, InvalidInput
from d2lmulti.models.networks import make_mlp

SMALL = make_mlp("small", (784, 16, 10))


@pytest.fixture(scope="module")
def data() -> Dataset:
    return load("digits").first(64)


def run(B: Backend, data: Dataset, **settings: object) -> list[float]:
    common = {"model": SMALL, "epochs": 1, "batch_size": 32, "backend": B.name}
    return train(**{**common, "dataset": data, **settings}).losses  # type: ignore


def images(n: int, *shape: int) -> np.ndarray:
    return np.zeros((n, *shape), "float32")


# What is wrong -> the change of a data set. Each would train, or test, wrongly, on some
# backend at least.
WRONG_DATA = {
    "a label of no class": lambda d: {"train_y": d.train_y + 10},
    "a label of -1": lambda d: {"train_y": d.train_y - 1},
    "a wrong label to test": lambda d: {"test_y": d.test_y + 1},
    "labels with fractions": lambda d: {"train_y": d.train_y.astype("float32")},
    "labels that are a list": lambda d: {"train_y": d.train_y.tolist()},
    "too few labels": lambda d: {"train_y": d.train_y[:5]},
    "no examples": lambda d: {"train_X": d.train_X[:0], "train_y": d.train_y[:0]},
    "nan in an image": lambda d: {"train_X": d.train_X * np.nan},
    "inf in a test": lambda d: {"test_X": d.test_X + np.float32(np.inf)},
    "another dtype": lambda d: {"train_X": d.train_X.astype("f8")},
    "another dtype to test": lambda d: {"test_X": d.test_X.astype("f8")},
    "more classes than logits": lambda d: {"classes": tuple("0123456789ab")},
    "no classes": lambda d: {"classes": ()},
    "images of 8 x 8": lambda d: {"train_X": images(64, 1, 8, 8)},
}


@pytest.mark.dealt
@pytest.mark.parametrize("wrong", WRONG_DATA)
def test_data_sets_are_checked_before_any_work(
    B: Backend, data: Dataset, wrong: str
) -> None:
    with ledger() as moved, pytest.raises(InvalidInput):
        run(B, replace(data, **WRONG_DATA[wrong](data)), num_gpus=2)
    assert moved.messages == 0


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int64"])
def test_labels_of_any_whole_dtype_train_alike(
    B: Backend, data: Dataset, dtype: str
) -> None:
    other = replace(data, train_y=data.train_y.astype(dtype))
    assert run(B, other) == run(B, data)


# -- what is not finite any more -------------------------------------------------------


@pytest.mark.parametrize(
    ("lr", "strategy"),
    [
        *((1e30, name) for name in ("data", "tensor", "pipeline", "sharded")),
        (1e308, "data"),
    ],
)
def test_a_loss_that_is_not_finite_stops_the_run(
    B: Backend, data: Dataset, lr: float, strategy: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.npz"
    with pytest.raises(Diverged, match="in epoch 1, step 2; the previous loss was 3."):
        run(B, data, lr=lr, strategy=strategy, num_gpus=2, epochs=3, checkpoint=file)
    assert not file.exists()


def one_batch(data: Dataset) -> Dataset:
    """Of which the only loss is finite, though the weights after it are not."""
    return replace(data, train_X=data.train_X[:32], train_y=data.train_y[:32])


@pytest.mark.parametrize("settings", [{}, {"save_every": 1}, None])
def test_weights_that_are_not_finite_stop_the_run_and_are_not_saved(
    B: Backend, data: Dataset, tmp_path: Path, settings: dict[str, int] | None
) -> None:
    file = tmp_path / "run.npz"
    saved = {} if settings is None else {"checkpoint": file, **settings}
    with pytest.raises(Diverged, match="in array 0 of parameters|finite"):
        run(B, one_batch(data), lr=1e300, **saved)
    assert not file.exists()
