"""NumPy's npz under a seal: no bit of it can change unseen, and reading runs no code.

The seal is the zip file's comment, at its very end: what the file is, its format, and
the SHA-256 of all bytes before. `np.load` opens such a file too. It is read here member
by member, as it was written, so that nothing in it is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np

# What a header may say of the type of numbers; NumPy writes them lowest byte first.
_TYPES: dict[bytes, np.dtype] = {
    t: np.dtype(t.decode()) for t in (b"<f4", b"<f8", b"|u1")
}
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"\{'descr': '(?P<type>[^']{3})', 'fortran_order': False, "
    rb"'shape': \((?P<shape>(?:\d{1,19}, )*(?:\d{1,19},?)?)\), \} *\n",
    re.DOTALL,
)
_SEAL = re.compile(rb"d2lmulti (?P<kind>[a-z]+) (?P<format>\d{3}) sha256 [0-9a-f]{64}")
# Before a member: mark, version, flags, method, time, date, CRC, sizes (of 32 bits; the
# true ones follow the name), lengths of the name and of what follows it.
_MEMBER = struct.Struct("<4s5HL8s2H")
_SIZES = struct.Struct("<2H2Q")  # number and length of this field, then the sizes


class Unreadable(Exception):
    """What is wrong with a file, in words."""


def write_npz(
    file: BinaryIO, kind: str, version: int, arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays of float32, float64 or bytes, and seal the file.

    The file must be empty and open for reading too. What the disk raises goes on.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: equal runs, equal files
            with archive.open(member, "w", force_zip64=True) as inside:
                little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
                np.lib.format.write_array(inside, little, (1, 0), allow_pickle=False)
        archive.comment = _seal(kind, version, "0" * 64)
    digest = _sha256(file, file.seek(-64, 2))
    file.seek(-64, 2)
    file.write(digest)


def read_npz(file: BinaryIO, kind: str, version: int) -> dict[str, np.ndarray]:
    """Read the arrays of a sealed file, in the order in which they stand.

    Raises `Unreadable` for a file that is another one, damaged or forged.
    """
    _check_seal(file, kind, version)
    arrays: dict[str, np.ndarray] = {}
    for name, content in _members(file):
        if name in arrays:
            raise Unreadable(f"{name!r:.80} stands in it twice")
        arrays[name] = _parse(name, content)
    return arrays


def _seal(kind: str, version: int, digest: str) -> bytes:
    return f"d2lmulti {kind} {version:03} sha256 {digest}".encode()


def _check_seal(file: BinaryIO, kind: str, version: int) -> None:
    size, length = file.seek(0, 2), len(_seal(kind, version, "0" * 64))
    file.seek(max(size - length, 0))
    seal = _SEAL.fullmatch(file.read())
    if not seal or seal["kind"] != kind.encode():
        raise Unreadable(
            f"it does not end with the seal of a {kind}: it is cut short, damaged, "
            "something else, or from an early version of d2lmulti"
        )
    if _sha256(file, size - 64) != seal[0][-64:]:
        raise Unreadable("its checksum is wrong: some of its bytes have changed")
    if (came := int(seal["format"])) != version:
        raise Unreadable(
            f"it has format {came}, of another version of d2lmulti; this one reads "
            f"format {version}"
        )


def _sha256(file: BinaryIO, length: int) -> bytes:
    digest = hashlib.sha256()
    file.seek(0)
    while length and (part := file.read(min(length, 2**20))):
        digest.update(part)
        length -= len(part)
    return digest.hexdigest().encode()


def _members(file: BinaryIO) -> Iterator[tuple[str, bytes]]:
    """Give name and content of one member of the zip file after the other."""
    size, at = file.seek(0, 2), file.seek(0)
    while (head := file.read(_MEMBER.size)).startswith(b"PK\x03\x04"):
        if len(head) < _MEMBER.size:
            raise Unreadable(f"it ends in the header at byte {at}")
        _, _, flags, method, _, _, crc, short, named, more = _MEMBER.unpack(head)
        name, sizes = file.read(named), file.read(more)
        # Nothing is compressed, so nothing becomes larger than it is in the file.
        if flags or method or more != _SIZES.size:
            raise Unreadable(f"{name!r:.80} is compressed, encrypted or made elsewhere")
        field, _, length, packed = _SIZES.unpack(sizes.ljust(more, b"\0"))
        if field != 1 or length != packed or length > size - file.tell():
            raise Unreadable(f"{name!r:.80} is larger than the file, or of two sizes")
        low = (length % 2**32).to_bytes(4, "little")  # as Python 3.10 still writes it
        if short not in (b"\xff" * 8, low * 2):
            raise Unreadable(f"{name!r:.80} is of two sizes")
        content = file.read(length)
        if zlib.crc32(content) != crc:
            raise Unreadable(f"{name!r:.80} has a wrong checksum")
        yield name.decode("ascii", "replace").removesuffix(".npy"), content
        at = file.tell()
    if not head.startswith(b"PK\x01\x02"):
        raise Unreadable(f"there is something else than a member at byte {at}")


def _parse(name: str, content: bytes) -> np.ndarray:
    """Read one array from the bytes of an npy file."""
    header = _NPY.match(content, 0, 2000)
    if not header or header["type"] not in _TYPES:
        raise Unreadable(f"{name!r:.80} has a header that d2lmulti does not write")
    dtype, start = _TYPES[header["type"]], header.end()
    if int.from_bytes(header["length"], "little") != start - 10:
        raise Unreadable(f"{name!r:.80} has a header of another length than it says")
    shape = tuple(int(size) for size in header["shape"].split(b",") if size.strip())
    expected, came = math.prod(shape) * dtype.itemsize, len(content) - start
    if expected != came or len(shape) > 32 or max(shape, default=0) > 2**40:
        raise Unreadable(f"{name!r:.80} has {came} bytes of data, not {expected}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape).copy()
