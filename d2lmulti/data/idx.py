"""Read the IDX format, in which MNIST and its relatives are published.

A gzip file holds two zero bytes, the code of the type (8: unsigned bytes), the number
of dimensions, then each dimension as four bytes, highest first, then the numbers. Every
way in which such a file can be broken gets its own message, before it fills the memory.
Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST Database of Handwritten Digits".
"""

from __future__ import annotations

import errno
import math
import stat
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataCorrupt, DataUnavailable

UNSIGNED_BYTE = 8  # the only type code that MNIST's relatives use
LARGEST = 2**27  # bytes; the published training images are 47 million


def read_idx(path: Path, dims: int, image: tuple[int, ...] | None = None) -> np.ndarray:
    """Read a gzipped IDX file into an array of unsigned bytes with `dims` dimensions.

    With `image`, the shape of each entry, another one is refused, and a file of none.
    Raises `DataUnavailable` if the file cannot be opened, `DataCorrupt` if it is not
    whole, not IDX, of another kind than expected, or larger than 128 MiB.
    """
    return parse_idx(_read(path), dims, str(path), image)


def parse_idx(
    content: bytes, dims: int, name: str, image: tuple[int, ...] | None = None
) -> np.ndarray:
    """Turn the bytes of a gzipped IDX file into an array (read-only).

    No more is unpacked than the header needs, and then what the header says. `name`
    stands in the error, `DataCorrupt`.
    """
    unzip = zlib.decompressobj(wbits=31)  # one gzip file, its checksum checked
    length = 4 + 4 * dims
    header = _unpack(unzip, content, length, name)
    magic = bytes([0, 0, UNSIGNED_BYTE, dims])
    if header[:4] != magic:
        raise corrupt(
            name,
            f"{dims}-dimensional IDX, which begins with {magic.hex()}",
            f"a file that begins with {header[:4].hex() or 'nothing'}",
        )
    if len(header) < length:
        raise corrupt(name, f"a header of {length} bytes", f"{len(header)} in all")
    shape = tuple(int(size) for size in np.frombuffer(header[4:], ">u4"))
    expected = math.prod(shape)
    if expected > LARGEST:
        raise corrupt(name, f"at most {LARGEST} bytes of data", f"the shape {shape}")
    data = _unpack(unzip, unzip.unconsumed_tail, expected + 1, name)
    if len(data) != expected:
        raise corrupt(
            name,
            f"{expected} bytes of data for the shape {shape} of its header",
            "more" if len(data) > expected else str(len(data)),
        )
    if unzip.unused_data:
        after = len(unzip.unused_data)
        raise corrupt(name, "nothing after the gzip file", f"{after} bytes")
    if image is not None and (shape[1:] != image or not shape[0]):
        size = " x ".join(map(str, image))
        raise corrupt(name, f"images of {size}", f"the shape {shape}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def corrupt(name: str, expected: str, came: str) -> DataCorrupt:
    """Make the error of a broken file: what was expected, what came, what to do."""
    return DataCorrupt(
        f"{name} is damaged: expected {expected}, got {came}; delete the file and load "
        "again to download it, or replace it by a good copy"
    )


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for a writer
            raise OSError(errno.EINVAL, "it is a folder or a device")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise DataUnavailable(
            f"cannot read {path}: {error.strerror}; expected a gzip file that you may "
            "read; change its permissions or replace it"
        ) from error
    if len(content) > LARGEST:
        raise corrupt(str(path), f"a gzip file of at most {LARGEST} bytes", "more")
    return content


def _unpack(unzip: Any, content: bytes, most: int, name: str) -> bytes:
    """Unpack at most so many bytes of a gzip file; fewer only at its proper end."""
    try:
        data = unzip.decompress(content, most)
    except zlib.error as error:  # not gzip, garbage in the middle, a wrong checksum
        raise corrupt(name, "a whole gzip file", str(error)) from error
    if len(data) < most and not unzip.eof:
        raise corrupt(name, "a whole gzip file", "one that is cut short")
    return data
