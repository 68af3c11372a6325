"""Fashion-MNIST: where its four files lie, and how they get there.

Files already in the data folder are used as they are, also a smaller set of one's own:
gzip's checksum, the IDX header and the counts must be right, the SHA-256 need not. What
is downloaded must have that of the published files. The two are never mixed.
Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST", 2017 (MIT licence).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import DataCorrupt, DataUnavailable
from ..progress import progress
from .idx import corrupt, read_idx

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

    Downloads the 30 MB where they are missing. Raises `DataUnavailable` when that is
    not possible, `DataCorrupt` for a broken file.
    """
    folder = find_files()
    arrays = []
    for part in ("train", "t10k"):
        images = folder / f"{part}-images-idx3-ubyte.gz"
        labels = folder / f"{part}-labels-idx1-ubyte.gz"
        X, y = read_idx(images, 3, (28, 28)), read_idx(labels, 1)
        if len(y) != len(X):
            raise corrupt(str(labels), f"{len(X)} labels, one an image", str(len(y)))
        if y.max() >= len(CLASSES):
            raise corrupt(str(labels), "labels from 0 to 9", f"a label {y.max()}")
        arrays += [X, y]
    return arrays


def find_files() -> Path:
    """Return the folder that holds all four files, after a download if need be.

    That is the folder of `data_folder`, or `fashion_mnist` in it, where downloads go.
    Raises `DataUnavailable` and `DataCorrupt` like `read_fashion_mnist`.
    """
    own = data_folder()
    home = own / "fashion_mnist"
    if not _present(home) and _present(own):
        home = own
    present = _present(home)
    missing = [name for name in SHA256 if name not in present]
    if missing:
        _check_published(home, present, missing)
    for name in missing:
        _download(home, name)
    return home


def data_folder() -> Path:
    """Return the folder of all data sets: D2LMULTI_DATA, or the user's cache.

    Raises `DataUnavailable` if D2LMULTI_DATA is a file.
    """
    import pooch  # here, so that importing d2lmulti stays quick

    folder = Path(os.environ.get("D2LMULTI_DATA") or pooch.os_cache("d2lmulti"))
    folder = folder.expanduser()
    if folder.exists() and not folder.is_dir():
        raise DataUnavailable(
            f"expected a folder in D2LMULTI_DATA, got the file {folder}; name the "
            "folder that holds, or shall hold, the data sets"
        )
    return folder


def _present(folder: Path) -> list[str]:
    return [name for name in SHA256 if (folder / name).exists()]


def _check_published(folder: Path, present: list[str], missing: list[str]) -> None:
    """Refuse to complete a set of somebody's own with files of the published one."""
    import pooch

    own = [name for name in present if pooch.file_hash(folder / name) != SHA256[name]]
    if own:
        raise DataUnavailable(
            f"expected four files in {folder}, but {', '.join(missing)} is missing and "
            f"{', '.join(own)} is not the published file, so a download would not fit; "
            "add what is missing, or delete the others to download the whole set"
        )


def _download(folder: Path, name: str) -> None:
    import pooch

    log = pooch.get_logger()
    was, log.disabled = log.disabled, True  # the progress bar says what happens
    try:
        # pooch sets the total; a 0 here would mean no bar.
        with progress(1, "B", name) as bar:
            download = pooch.HTTPDownloader(progressbar=bar)
            pooch.retrieve(URL + name, SHA256[name], name, folder, downloader=download)
    except OSError as error:  # no network, no such page, no room, no permission
        raise DataUnavailable(
            f"expected {name} in {folder} or a download from {URL}, got "
            f"{type(error).__name__}: {error}; try again with a network, or put "
            f"{', '.join(SHA256)} there by hand, or set D2LMULTI_DATA to their folder"
        ) from error
    except ValueError as error:  # pooch has thrown the file away
        raise DataCorrupt(
            f"{URL}{name} is not the published file, expected SHA-256 {SHA256[name]}: "
            f"{error} Try again, or put a good copy into {folder} by hand"
        ) from error
    finally:
        log.disabled = was
