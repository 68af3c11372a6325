"""The data sets: their form, their dtypes, and what is in the digits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from d2lmulti import data as datasets
from d2lmulti.data import Dataset, load


def check_arrays(data: Dataset, dtype: str) -> None:
    for X, y in ((data.train_X, data.train_y), (data.test_X, data.test_y)):
        assert X.shape == (len(y), 1, 28, 28)
        assert X.dtype == dtype
        assert y.dtype == np.int64
        assert X.flags.c_contiguous and X.flags.writeable
        assert set(y) <= set(range(len(data.classes)))


# -- any data set ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", np.float64, np.dtype("f4")])
@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_every_set_of_images_has_the_same_form(
    name: str, dtype: object, own_set: Path
) -> None:
    data = load(name, dtype)
    assert data.name == name
    assert len(data.classes) == 10
    check_arrays(data, np.dtype(dtype).name)


# -- digits ----------------------------------------------------------------------------


def original() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.images, digits.target


def test_digits_hold_every_original_image_once_with_its_label() -> None:
    data = load("digits", "float64")
    X, y = np.concatenate([data.train_X, data.test_X]), [*data.train_y, *data.test_y]
    pixels = (X[:, 0, 3:27:3, 3:27:3] + 0.5) * 8  # the middle of every block
    ours = sorted(
        (*image.ravel(), label) for image, label in zip(pixels, y, strict=True)
    )
    images, labels = original()
    theirs = sorted(
        (*image.ravel(), label) for image, label in zip(images, labels, strict=True)
    )
    assert ours == theirs


def test_no_digit_is_in_both_parts_and_the_split_is_fixed() -> None:
    data = load("digits")
    assert (len(data.train_X), len(data.test_X)) == (1437, 360)
    train = {image.tobytes() for image in data.train_X}
    assert not train & {image.tobytes() for image in data.test_X}
    assert data.train_y[:10].tolist() == [6, 6, 6, 2, 5, 6, 6, 2, 2, 1]
    assert data.test_y[:10].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6]


def test_digits_are_read_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import d2lmulti, sys; d2lmulti.load('digits'); print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"sklearn", "scipy", "pandas"} & {*told.stdout.split()}
    ours = load("digits")
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    theirs = load("digits")
    assert np.array_equal(ours.train_X, theirs.train_X)
    assert np.array_equal(ours.train_y, theirs.train_y)
