"""Fashion-MNIST: four published files, downloaded once and checked by their SHA-256.

Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST", 2017 (MIT license).
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

from ..errors import DataCorrupt, DataUnavailable
from ..progress import progress

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

    The files lie in the folder `fashion_mnist` of D2LMULTI_DATA or of the user's cache;
    missing ones are downloaded, 30 MB in all. Raises `DataUnavailable` if that fails
    and `DataCorrupt` for a file with another checksum.
    """
    import pooch  # here, so that importing d2lmulti stays fast

    home = Path(os.environ.get("D2LMULTI_DATA") or pooch.os_cache("d2lmulti"))
    files = pooch.create(home.expanduser() / "fashion_mnist", URL, registry=SHA256)
    pooch.get_logger().setLevel("WARNING")  # the progress bar shows what happens
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
        except OSError as error:  # no network, no such page, no room, no permission
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
