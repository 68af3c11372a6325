"""Files as accidents and strangers make them: tools for the tests, not the library's.

A checkpoint is taken apart into members and put together again by `zipfile` and
`hashlib` alone, with or without a seal that fits.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

Members = list[tuple[str, bytes]]
PREFIX = b"d2lmulti checkpoint 003 sha256 "


def members(content: bytes) -> Members:
    """Take a checkpoint apart: the names and bytes of its members."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def packed(
    parts: Members, method: int = zipfile.ZIP_STORED, prefix: bytes = PREFIX
) -> bytes:
    """Put members together, with a seal that fits."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of two with the same name
        for name, data in parts:
            member = zipfile.ZipInfo(name)
            member.compress_type = method
            with archive.open(member, "w", force_zip64=True) as inside:
                inside.write(data)
        archive.comment = prefix + b"0" * 64
    return sealed(buffer.getvalue())


def sealed(content: bytes) -> bytes:
    """Make the last 64 bytes the digest of all before them."""
    return content[:-64] + hashlib.sha256(content[:-64]).hexdigest().encode()


def about(content: bytes) -> dict[str, Any]:
    """Read the text about the run."""
    with np.load(io.BytesIO(content)) as arrays:
        return json.loads(arrays["about"].tobytes())


def npy(array: np.ndarray) -> bytes:
    """Write one array as NumPy does."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, (1, 0))
    return buffer.getvalue()


def retold(content: bytes, text: bytes | Any) -> bytes:
    """Put another text about the run into a checkpoint; bytes as they are."""
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    (name, _), *rest = members(content)
    return packed([(name, npy(np.frombuffer(text, np.uint8))), *rest])


def recounted(content: bytes, table: Any) -> bytes:
    """Put another table of finished epochs into a checkpoint."""
    first, (name, _), *rest = members(content)
    return packed([first, (name, npy(np.array(table))), *rest])


def reheaded(content: bytes, which: int, change: Callable[[bytes], bytes]) -> bytes:
    """Change the npy header of one member."""
    parts = members(content)
    name, data = parts[which]
    end = 10 + int.from_bytes(data[8:10], "little")
    parts[which] = name, change(data[:end]) + data[end:]
    return packed(parts)


def header(text: str, version: bytes = b"\1\0") -> Callable[[bytes], bytes]:
    """Make an npy header of a text, whatever stood there."""
    line = text.encode() + b"\n"
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(line))
    return lambda _: b"\x93NUMPY" + version + length + line


# -- accidents -------------------------------------------------------------------------


def flip(rng: Random, content: bytes, spots: range | None = None) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        at = rng.choice(spots or range(len(changed)))
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: Random, content: bytes) -> bytes:
    """Lose, double, blank or add a piece somewhere."""
    first, last = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    piece = content[first:last]
    return rng.choice([
        lambda: content[:last],
        lambda: content[first:],
        lambda: content[:first] + content[last:],
        lambda: content[:first] + piece + piece + content[last:],
        lambda: content[:first] + bytes(len(piece)) + content[last:],
        lambda: content[:first] + rng.randbytes(rng.randrange(1, 40)) + content[first:],
        lambda: content + piece,
    ])()  # fmt: skip


def flip_headers(rng: Random, content: bytes) -> bytes:
    """Flip bits only where the zip file or an array says what it is."""
    marks = [m.start() for m in re.finditer(b"PK..|\x93NUMPY", content, re.DOTALL)]
    at = rng.choice(marks)
    return flip(rng, content, range(at, min(at + 130, len(content))))


def swap(rng: Random, content: bytes) -> bytes:
    """Exchange the bytes of two members, as a zip program can; the old seal stays."""
    parts = members(content)
    i, j = rng.sample(range(len(parts)), 2)
    (a, x), (b, y) = parts[i], parts[j]
    parts[i], parts[j] = rng.choice([((a, y), (b, x)), ((b, y), (a, x))])
    return packed(parts)[:-64] + content[-64:]
