"""The data sets of the book, as NumPy arrays: digits, Fashion-MNIST and a text.

The first two hold gray images of 28 x 28 in ten classes, so one LeNet fits both; the
text is for a transformer (see `text.py`). Only Fashion-MNIST needs a network, once.
Chapter: *data_parallel*.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_choice, check_count, invalid
from .fashion_mnist import CLASSES, read_fashion_mnist
from .text import ALPHABET, cut_pieces, read_story


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples and their targets, for training and for testing.

    Images: train_X and test_X are (n, 1, 28, 28) of one float dtype; train_y and test_y
    are (n,) of int64, each an index into `classes`, the names. Text: all four are
    (n, length) of int64, and `classes` are the characters.
    """

    name: str  #: as `load` takes it
    train_X: np.ndarray  #: examples to train on
    train_y: np.ndarray  #: their targets
    test_X: np.ndarray  #: examples to test on
    test_y: np.ndarray  #: their targets
    classes: tuple[str, ...]  #: what the targets stand for

    def first(self, n: int) -> Dataset:
        """Return the same data set with only the first n training examples."""
        check_count("n", n, max=len(self.train_X))
        return replace(self, train_X=self.train_X[:n], train_y=self.train_y[:n])

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.train_X.shape[1:]))
        return (
            f"Dataset({self.name!r}: {len(self.train_X)} to train, "
            f"{len(self.test_X)} to test, {shape}, {self.train_X.dtype}, "
            f"{len(self.classes)} classes)"
        )


def load(name: str, dtype: Any = "float32") -> Dataset:
    """Load the data set `digits`, `fashion_mnist` or `text`, with images of `dtype`.

    Raises `InvalidInput` for another name or a dtype other than float32 and float64.
    """
    return DATASETS[check_choice("data set", name, DATASETS)](dtype)


def digits(dtype: Any = "float32") -> Dataset:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8, enlarged to 28 x 28.

    Every pixel becomes a block of 3 x 3, with a margin of 2 background pixels around
    the image. Pixels from 0 (background) to 16 become x / 8 - 0.5. All are multiples of
    1/8, and so the same in float32 and float64.

    The split is `numpy.random.default_rng(0).permutation(1797)`: the first 1,437 for
    training, the last 360 for testing, with the same writers in both parts. Accuracies
    depend on the split: over several others LeNet's mean was one point lower.
    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", 1998.
    """
    dtype = _check_dtype(dtype)
    pixels, y = _read_digits()  # (1797, 64) from 0 to 16, (1797,)
    blocks = pixels.reshape(-1, 8, 8).repeat(3, axis=1).repeat(3, axis=2)
    X = np.pad(blocks, ((0, 0), (2, 2), (2, 2)))[:, None]  # (1797, 1, 28, 28)
    X, y = (X / 8 - 0.5).astype(dtype), y.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:1437], order[1437:]
    return Dataset("digits", X[train], y[train], X[test], y[test], tuple("0123456789"))


def fashion_mnist(dtype: Any = "float32") -> Dataset:
    """Load 60,000 + 10,000 images of clothes, pixels scaled from 0..255 to 0..1.

    Downloads 30 MB into the user's cache or the folder D2LMULTI_DATA. Raises
    `DataUnavailable` without files and network, `DataCorrupt` for a damaged file.
    """
    dtype = _check_dtype(dtype)
    parts = read_fashion_mnist()
    train_X, test_X = (X[:, None].astype(dtype) / 255 for X in parts[::2])
    train_y, test_y = (y.astype(np.int64) for y in parts[1::2])
    return Dataset("fashion_mnist", train_X, train_y, test_X, test_y, CLASSES)


def text(dtype: Any = "float32", length: int = 32) -> Dataset:
    """Load a short story in sequences of `length` characters, to predict the next one.

    X holds ids of the 36 characters and y the same ids one place on, so every character
    but the first is a target; both are int64, whatever the `dtype` of the weights. The
    last tenth of the sequences is for testing.
    """
    _check_dtype(dtype)
    X, y = cut_pieces(read_story(), length)
    train = len(X) - len(X) // 10
    return Dataset("text", X[:train], y[:train], X[train:], y[train:], tuple(ALPHABET))


DATASETS = {"digits": digits, "fashion_mnist": fashion_mnist, "text": text}


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    # scikit-learn's own reader of this file imports SciPy and pandas: 0.8 seconds.
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.exists():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps it elsewhere

    return load_digits(return_X_y=True)


def _check_dtype(dtype: Any) -> np.dtype:
    if dtype is not None:  # which NumPy takes for float64
        with suppress(Exception):  # whatever NumPy says of what is no dtype
            known = np.dtype(dtype)
            if known in (np.dtype("float32"), np.dtype("float64")):
                return known
    raise invalid("dtype float32 or float64", dtype)
