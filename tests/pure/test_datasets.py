"""The data sets: their form, their dtypes, and what is in the digits and the story."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from d2lmulti import data as datasets
from d2lmulti import train
from d2lmulti.data import ALPHABET, Dataset, encode, load, read_story
from d2lmulti.errors import InvalidInput
from d2lmulti.models.transformer import make_transformer


def check_arrays(data: Dataset, dtype: str) -> None:
    for X, y in ((data.train_X, data.train_y), (data.test_X, data.test_y)):
        assert X.shape == (len(y), 1, 28, 28)
        assert X.dtype == dtype
        assert y.dtype == np.int64
        assert X.flags.c_contiguous and X.flags.writeable
        assert set(y) <= set(range(len(data.classes)))


# -- any data set ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", np.float64])
@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_every_set_of_images_has_the_same_form(
    name: str, dtype: object, own_set: Path
) -> None:
    data = load(name, dtype)
    assert data.name == name
    assert len(data.classes) == 10
    check_arrays(data, np.dtype(dtype).name)


# -- digits ----------------------------------------------------------------------------


def rows(images: np.ndarray, labels: object) -> list[tuple[float, ...]]:
    """Every image with its label, in an order of their own."""
    pairs = zip(images, labels, strict=True)
    return sorted((*image.ravel(), label) for image, label in pairs)


@pytest.mark.parametrize("spec", [find_spec, lambda name: None])
def test_digits_hold_every_original_image_once_with_its_label(
    spec: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the file of scikit-learn, or where that is not found, by it."""
    monkeypatch.setattr(datasets, "find_spec", spec)
    data = load("digits", "float64")
    X, y = np.concatenate([data.train_X, data.test_X]), [*data.train_y, *data.test_y]
    pixels = (X[:, 0, 3:27:3, 3:27:3] + 0.5) * 8  # the middle of every block
    original = load_digits()
    assert rows(pixels, y) == rows(original.images, original.target)


def test_no_digit_is_in_both_parts_and_the_split_is_fixed() -> None:
    data = load("digits")
    assert (len(data.train_X), len(data.test_X)) == (1437, 360)
    train = {image.tobytes() for image in data.train_X}
    assert not train & {image.tobytes() for image in data.test_X}
    assert data.train_y[:10].tolist() == [6, 6, 6, 2, 5, 6, 6, 2, 2, 1]
    assert data.test_y[:10].tolist() == [0, 8, 8, 9, 8, 3, 7, 5, 0, 6]


# -- text: the story, for a model that knows its characters ---------------------------


def test_the_pieces_put_together_are_the_story() -> None:
    data, story = load("text"), read_story()
    X, y = np.concatenate([data.train_X, data.test_X]), [*data.train_y, *data.test_y]
    assert X.dtype == data.train_y.dtype == np.int64
    assert X.shape == (171, 32) and len(data.train_X) == 154
    assert (X.ravel() == encode(story[: 171 * 32])).all()
    assert (np.concatenate(y) == encode(story[1 : 171 * 32 + 1])).all()
    assert data.classes == tuple(ALPHABET) and len(set(ALPHABET)) == 36


def test_characters_that_the_model_has_no_row_for_are_refused() -> None:
    few = make_transformer("few", vocabulary=30)
    with pytest.raises(InvalidInput, match="ids below 30, the vocabulary of few"):
        train(1, 32, backend="numpy", model=few, dataset="text")
