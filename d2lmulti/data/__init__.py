"""The data sets of the book, as NumPy arrays, and the batches cut from them.

Digits and Fashion-MNIST hold gray images of 28 x 28 in ten classes, so one LeNet fits
both; a short story, written for this book and in the public domain (CC0), is for the
transformer. Only Fashion-MNIST needs an internet connection, once. Chapter:
*data_parallel*.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import check_choice, check_count
from ..comm.group import Group
from ..errors import DataCorrupt, DataUnavailable, InvalidInput
from ..files import progress
from ..plans.rounds import even_bounds


def batch_count(n: int, batch_size: int) -> int:
    """Return the number of batches of n examples; a short last one counts too.

    >>> batch_count(10, 4)
    3
    """
    n = check_count("number of examples", n)
    batch_size = check_count("batch_size", batch_size)
    return -(-n // batch_size)  # rounded up


def batches(
    X: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    group: Group | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over (X, y) in batches of `batch_size`; the last may be shorter.

    X (n, ...) and y (n, ...) are NumPy arrays. Every example comes exactly once;
    without `shuffle` in the order of X. The batches are copies. With a group, a batch
    has only the examples of this process's ranks, as `split_batch` cuts them. Raises
    `InvalidInput` at once, not at the first batch.

    >>> X = np.arange(5)
    >>> [part.tolist() for part, _ in batches(X, X, 2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    """
    n = len(X)
    if not 0 < n == len(y):
        raise InvalidInput(
            f"expected one label per example, got {n} examples and {len(y)} labels"
        )
    count = batch_count(n, batch_size)
    order = np.arange(n)
    if shuffle:
        check_count("seed", seed, min=0, max=None)
        check_count("epoch", epoch, min=0, max=None)
        order = np.random.default_rng([seed, epoch]).permutation(n)
    parts = (order[i * batch_size : (i + 1) * batch_size] for i in range(count))
    if group is not None:
        parts = (_local_part(part, group) for part in parts)
    return ((X[part], y[part]) for part in parts)


def _local_part(part: np.ndarray, group: Group) -> np.ndarray:
    bounds = even_bounds(len(part), group.size)
    return np.concatenate([part[slice(*bounds[rank])] for rank in group.local_ranks])


CLASSES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
URL = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
SHA256 = {
    "train-images-idx3-ubyte.gz": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
    ),
    "train-labels-idx1-ubyte.gz": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
    ),
}


def read_fashion_mnist() -> list[np.ndarray]:
    """Read train_X (n, 28, 28), train_y (n,), test_X, test_y as unsigned bytes.

    The files are in the folder `fashion_mnist` of D2LMULTI_DATA or of the user's cache;
    missing ones are downloaded, 30 MB in all. Raises `DataUnavailable` if that fails
    and `DataCorrupt` for a file with another checksum.
    """
    import pooch  # here, so that importing d2lmulti stays fast

    home = Path(os.environ.get("D2LMULTI_DATA") or pooch.os_cache("d2lmulti"))
    files = pooch.create(home.expanduser() / "fashion_mnist", URL, registry=SHA256)
    pooch.get_logger().setLevel("WARNING")  # the progress bar is enough
    arrays = []
    for name in SHA256:
        path = files.abspath / name
        try:
            if not path.exists():
                with progress(1, "B", name) as bar:  # pooch sets the total
                    download = pooch.HTTPDownloader(progressbar=bar)
                    files.fetch(name, downloader=download)
            elif pooch.file_hash(str(path)) != SHA256[name]:
                raise ValueError("its SHA-256 differs; delete it to download it again")
            content = gzip.decompress(path.read_bytes())
        except OSError as error:  # no network, no such page, no space, no permission
            raise DataUnavailable(
                f"expected {path} or a download from {URL}, got "
                f"{type(error).__name__}: {error}; try again with a network, or put "
                f"{', '.join(SHA256)} there by hand"
            ) from error
        except ValueError as error:
            raise DataCorrupt(f"{path} is not the published file: {error}") from error
        # The header has four bytes, and four for each dimension.
        offset, shape = (16, (-1, 28, 28)) if "images" in name else (8, (-1,))
        arrays.append(np.frombuffer(content, np.uint8, offset=offset).reshape(shape))
    return arrays


ALPHABET = "abcdefghijklmnopqrstuvwxyz \n.,:;?!'\""


def read_story() -> str:
    """Return the story in lowercase: 5,491 characters of `ALPHABET`."""
    story = files(__package__).joinpath("stories", "four_sisters.txt")
    return story.read_text("utf-8").lower()


def encode(text: str) -> np.ndarray:
    """Turn characters into ids, int64; raise `InvalidInput` outside of `ALPHABET`.

    >>> encode("a bad")
    array([ 0, 26,  1,  0,  3])
    """
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise InvalidInput(f"expected characters of {ALPHABET!r}, got {unknown[0]!r}")
    return np.array([ALPHABET.index(character) for character in text], np.int64)


def cut_sequences(text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text into sequences X (n, length) and the characters y that follow each.

    y is X shifted by one character; an incomplete last sequence is left out. Raises
    `InvalidInput` unless there are at least ten sequences.
    """
    longest = (len(text) - 1) // 10
    check_count("length", length, max=longest)
    ids = encode(text)
    n = (len(ids) - 1) // length
    X, y = ids[: n * length], ids[1 : n * length + 1]
    return X.reshape(n, length), y.reshape(n, length)


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
    classes: tuple[str, ...]  #: names of the targets

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
    """Load the data set `digits`, `fashion_mnist`, or `text`, with images of `dtype`.

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
    dtype = check_choice("dtype", np.dtype(dtype or object).name, DTYPES)
    # scikit-learn's own reader of this file imports SciPy and pandas: 0.8 seconds.
    package = find_spec("sklearn")
    file = Path(package.origin or "") if package else Path()  # of the package
    file = file.parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        table = np.loadtxt(file, delimiter=",")
        pixels, y = table[:, :-1], table[:, -1]  # (1797, 64) from 0 to 16, (1797,)
    else:
        from sklearn.datasets import load_digits  # a version with another layout

        pixels, y = load_digits(return_X_y=True)
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
    dtype = check_choice("dtype", np.dtype(dtype or object).name, DTYPES)
    parts = read_fashion_mnist()
    train_X, test_X = (X[:, None].astype(dtype) / 255 for X in parts[::2])
    train_y, test_y = (y.astype(np.int64) for y in parts[1::2])
    return Dataset("fashion_mnist", train_X, train_y, test_X, test_y, CLASSES)


def text(dtype: Any = "float32", length: int = 32) -> Dataset:
    """Load a short story in sequences of `length` characters, to predict the next one.

    X holds ids of the 36 characters, and y the ids of the next characters, so every
    character but the first is a target; both are int64, whatever the `dtype` of the
    weights. The last tenth of the sequences is for testing.
    """
    X, y = cut_sequences(read_story(), length)
    train = len(X) - len(X) // 10
    return Dataset("text", X[:train], y[:train], X[train:], y[train:], tuple(ALPHABET))


DTYPES = ("float32", "float64")
DATASETS = {"digits": digits, "fashion_mnist": fashion_mnist, "text": text}
