"""Fashion-MNIST: where its four files lie, and how they get there.

Files already in the data folder are used as they are, also a smaller set of one's own:
gzip's checksum, the IDX header and the counts must be right, the published checksums
need not. What is downloaded must match those. The two are never mixed.
Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST", 2017 (MIT licence).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import DataCorrupt, DataUnavailable
from .idx import corrupt, read_idx
from .progress import progress

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
MD5 = {  # published by its authors
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
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
        X, y = read_idx(images, 3), read_idx(labels, 1)
        if X.shape[1:] != (28, 28) or len(X) == 0:
            raise corrupt(str(images), "images of 28 x 28", f"the shape {X.shape}")
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
    missing = [name for name in MD5 if name not in present]
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
    return [name for name in MD5 if (folder / name).exists()]


def _check_published(folder: Path, present: list[str], missing: list[str]) -> None:
    """Refuse to complete a set of somebody's own with files of the published one."""
    import pooch

    sums = {name: pooch.file_hash(folder / name, "md5") for name in present}
    own = [name for name in present if sums[name] != MD5[name]]
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
            pooch.retrieve(
                URL + name, f"md5:{MD5[name]}", name, folder, downloader=download
            )
    except OSError as error:  # no network, no such page, no room, no permission
        raise DataUnavailable(
            f"expected {name} in {folder} or a download from {URL}, got "
            f"{type(error).__name__}: {error}; try again with a network, or put "
            f"{', '.join(MD5)} there by hand, or set D2LMULTI_DATA to their folder"
        ) from error
    except ValueError as error:  # pooch has thrown the file away
        raise DataCorrupt(
            f"{URL}{name} is not the published file, expected md5 {MD5[name]}: {error} "
            f"Try again, or put a good copy into {folder} by hand"
        ) from error
    finally:
        log.disabled = was
