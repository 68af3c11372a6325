"""Read the IDX format, in which MNIST and its relatives are published.

A gzip file holds two zero bytes, the code of the type (8: unsigned bytes), the number
of dimensions, then each dimension as four bytes, highest first, then the numbers. Every
way in which such a file can be broken gets its own message.
Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST Database of Handwritten Digits".
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ..errors import DataCorrupt, DataUnavailable

UNSIGNED_BYTE = 8  # the only type code that MNIST's relatives use


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read a gzipped IDX file into an array of unsigned bytes with `dims` dimensions.

    Raises `DataUnavailable` if the file cannot be opened, `DataCorrupt` if it is not
    whole, not IDX, or of another kind than expected.
    """
    return parse_idx(_unzip(path), dims, str(path))


def parse_idx(content: bytes, dims: int, name: str) -> np.ndarray:
    """Turn the bytes of an IDX file into an array (read-only, it shares the bytes).

    `name` stands in the error, `DataCorrupt`.
    """
    magic = bytes([0, 0, UNSIGNED_BYTE, dims])
    header = 4 + 4 * dims
    if content[:4] != magic:
        raise corrupt(
            name,
            f"{dims}-dimensional IDX, which begins with {magic.hex()}",
            f"a file that begins with {content[:4].hex() or 'nothing'}",
        )
    if len(content) < header:
        raise corrupt(name, f"a header of {header} bytes", f"{len(content)} in all")
    shape = tuple(int(size) for size in np.frombuffer(content[4:header], ">u4"))
    came = len(content) - header
    if came != math.prod(shape):
        raise corrupt(
            name,
            f"{math.prod(shape)} bytes of data for the shape {shape} of its header",
            str(came),
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def corrupt(name: str, expected: str, came: str) -> DataCorrupt:
    """Make the error of a broken file: what was expected, what came, what to do."""
    return DataCorrupt(
        f"{name} is damaged: expected {expected}, got {came}; delete the file and load "
        "again to download it, or replace it by a good copy"
    )


def _unzip(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    # Not gzip or a wrong checksum, cut short, or garbage in the middle.
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise corrupt(str(path), "a whole gzip file", str(error)) from error
    except OSError as error:
        raise DataUnavailable(
            f"cannot read {path}: {error.strerror}; expected a gzip file that you may "
            "read; change its permissions or replace it"
        ) from error
