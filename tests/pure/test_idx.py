"""Broken IDX files: each kind of damage is named, with what to do."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pure.idx_files import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, idx

from d2lmulti.data.datasets import load
from d2lmulti.data.idx import parse_idx
from d2lmulti.errors import DataCorrupt, DataUnavailable


def with_magic(magic: str) -> Callable[[bytes], bytes]:
    return lambda content: gzip.compress(
        bytes.fromhex(magic) + gzip.decompress(content)[4:]
    )


def unzipped(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda content: gzip.compress(change(gzip.decompress(content)))


def flipped(content: bytes) -> bytes:
    """Change one bit of gzip's own checksum, its eighth byte from the end."""
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


IMAGES, LABELS = np.zeros((30, 28, 28)), np.arange(30) % 10
BROKEN = {
    "empty": (TRAIN_IMAGES, lambda _: b"", "a whole gzip file, got one that is cut"),
    "not gzip": (TRAIN_IMAGES, lambda _: b"<html>", "expected a whole gzip file"),
    "gzip cut short": (TRAIN_IMAGES, lambda c: c[:-9], "a whole gzip file, got"),
    "gzip header only": (TEST_LABELS, lambda c: c[:10], "a whole gzip file, got"),
    "garbage in the middle": (
        TRAIN_IMAGES,
        lambda c: c[:20] + b"\xff" * 40 + c[60:],
        "a whole gzip file, got Error -3",
    ),
    "a flipped bit": (TEST_IMAGES, flipped, "a whole gzip file, got .* data check"),
    "labels for images": (
        TRAIN_IMAGES,
        lambda _: gzip.compress(idx(LABELS)),
        "3-dimensional IDX, which begins with 00000803, got .* 00000801",
    ),
    "images for labels": (
        TEST_LABELS,
        lambda _: gzip.compress(idx(IMAGES)),
        "1-dimensional IDX, which begins with 00000801, got .* 00000803",
    ),
    "floats": (TRAIN_IMAGES, with_magic("00000d03"), "00000803, got .* 00000d03"),
    "no header": (TEST_LABELS, unzipped(lambda c: c[:3]), "00000801, got .* 000008;"),
    "half a header": (TRAIN_IMAGES, unzipped(lambda c: c[:9]), "of 16 bytes, got 9"),
    "one byte short": (
        TRAIN_IMAGES,
        unzipped(lambda c: c[:-1]),
        r"23520 bytes of data for the shape \(30, 28, 28\) of its header, got 23519",
    ),
    "one byte more": (TRAIN_LABELS, unzipped(lambda c: c + b"0"), "30 bytes .* more"),
    "another file behind": (
        TRAIN_IMAGES,
        lambda c: c + gzip.compress(b"more"),
        "nothing after the gzip file, got 24 bytes",
    ),
    "a checksum missing": (TRAIN_LABELS, lambda c: c[:-8], "got one that is cut short"),
    "a huge header": (
        TRAIN_IMAGES,
        unzipped(lambda c: c[:4] + b"\xff" * 12 + c[16:]),
        r"at most 134217728 bytes .* \(4294967295, 4294967295, 4294967295\)",
    ),
    "another size": (
        TEST_IMAGES,
        lambda _: gzip.compress(idx(np.zeros((10, 32, 32)))),
        r"images of 28 x 28, got the shape \(10, 32, 32\)",
    ),
    "no images": (
        TEST_IMAGES,
        lambda _: gzip.compress(idx(IMAGES[:0])),
        r"images of 28 x 28, got the shape \(0, 28, 28\)",
    ),
    "a label missing": (
        TRAIN_LABELS,
        lambda _: gzip.compress(idx(LABELS[:29])),
        "expected 30 labels, one an image, got 29",
    ),
    "a label too high": (
        TRAIN_LABELS,
        lambda _: gzip.compress(idx(LABELS + 1)),
        "labels from 0 to 9, got a label 10",
    ),
}


@pytest.mark.parametrize("cause", BROKEN)
def test_a_broken_file_is_named_with_what_is_wrong(cause: str, own_set: Path) -> None:
    name, damage, message = BROKEN[cause]
    path = own_set / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataCorrupt, match=message) as caught:
        load("fashion_mnist")
    assert str(path) in str(caught.value)
    assert "delete the file and load again" in str(caught.value)


def test_a_file_that_cannot_be_opened_is_not_called_damaged(own_set: Path) -> None:
    (own_set / TRAIN_IMAGES).unlink()
    (own_set / TRAIN_IMAGES).mkdir()
    with pytest.raises(DataUnavailable, match=f"cannot read .*{TRAIN_IMAGES}"):
        load("fashion_mnist")


def test_a_pipe_is_not_waited_for(own_set: Path) -> None:
    (own_set / TRAIN_IMAGES).unlink()
    os.mkfifo(own_set / TRAIN_IMAGES)
    with pytest.raises(DataUnavailable, match="it is a folder or a device"):
        load("fashion_mnist")


def test_a_file_larger_than_any_is_not_read(own_set: Path) -> None:
    with (own_set / TRAIN_IMAGES).open("r+b") as file:
        file.truncate(2**38)
    with pytest.raises(DataCorrupt, match="a gzip file of at most 134217728 bytes"):
        load("fashion_mnist")


@given(
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4), seed=st.integers(0, 99)
)
def test_idx_is_read_as_it_was_written(shape: list[int], seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    read = parse_idx(gzip.compress(idx(array)), array.ndim, "file")
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)


@given(content=st.binary(max_size=40), dims=st.integers(1, 3))
def test_random_bytes_are_never_read_as_data(content: bytes, dims: int) -> None:
    with pytest.raises(DataCorrupt, match="somewhere is damaged: expected"):
        parse_idx(gzip.compress(b"\x01" + content), dims, "somewhere")
