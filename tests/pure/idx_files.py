"""Small IDX files for the tests, written from the definition of the format."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from d2lmulti.data.fashion_mnist import SHA256

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = SHA256


def idx(array: np.ndarray) -> bytes:
    """Write unsigned bytes in the IDX format."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder: Path, train: int = 30, test: int = 10) -> Path:
    """Write a small Fashion-MNIST: image i is grey i, its label i % 10."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in zip(SHA256, (train, train, test, test), strict=True):
        number = np.arange(n)
        images = np.broadcast_to(number[:, None, None], (n, 28, 28))
        content = idx(images if "images" in name else number % 10)
        (folder / name).write_bytes(gzip.compress(content))
    return folder
