"""Small IDX files for the tests, written from the definition of the format."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from d2lmulti import data as fashion_mnist

TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = fashion_mnist.SHA256


def idx(array: np.ndarray) -> bytes:
    """Write unsigned bytes in the IDX format."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a small Fashion-MNIST and publish its checksums.

    Image i is gray i, and its label i % 10; 30 are for training, 10 for testing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in zip(fashion_mnist.SHA256, (30, 30, 10, 10), strict=True):
        number = np.arange(n)
        images = np.broadcast_to(number[:, None, None], (n, 28, 28))
        content = idx(images if "images" in name else number % 10)
        (folder / name).write_bytes(gzip.compress(content, mtime=0))
    publish(folder, monkeypatch)
    return folder


def publish(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the checksums of these files count as the published ones."""
    sums = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in fashion_mnist.SHA256
    }
    monkeypatch.setattr(fashion_mnist, "SHA256", sums)
