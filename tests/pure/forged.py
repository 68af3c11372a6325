"""Ways to make up a checkpoint with a right seal, and what is said about each."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from pure.forge import (
    PREFIX,
    about,
    header,
    members,
    npy,
    packed,
    recounted,
    reheaded,
    retold,
    sealed,
)


def told(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Change the text about the run."""

    def forge(good: bytes) -> bytes:
        text = about(good)
        change(text)
        return retold(good, text)

    return forge


def put(*path: Any) -> Callable[[bytes], bytes]:
    """Put the last argument where the ones before it lead to."""
    *inner, last, value = path

    def change(text: Any) -> None:
        for key in inner:
            text = text[key]
        text[last] = value

    return told(change)


def member(i: int, name: str | None, data: bytes | None) -> Callable[[bytes], bytes]:
    """Give one member another name, or other bytes."""

    def change(some: list) -> None:
        some[i] = name or some[i][0], data or some[i][1]

    return parts(change)


def parts(change: Callable[[list], Any]) -> Callable[[bytes], bytes]:
    """Change the list of members."""

    def forge(good: bytes) -> bytes:
        change(some := members(good))
        return packed(some)

    return forge


def marked(flags: int, method: int) -> Callable[[bytes], bytes]:
    """Give the first member other flags, or another method of compression."""
    return lambda good: sealed(good[:6] + struct.pack("<2H", flags, method) + good[10:])


def shape(text: str, kind: str = "<f4") -> Callable[[bytes], bytes]:
    line = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {text}, }}"
    return lambda good: reheaded(good, 2, header(line))


FORGED = {
    # the text about the run
    "no text": (parts(lambda p: p.pop(0)), "about the run is not in it"),
    "a text of numbers": (
        member(0, None, npy(np.zeros(3, "<f4"))), "about the run is not in it",
    ),
    "no JSON": (lambda good: retold(good, b"\xff{"), "is no JSON"),
    "a list": (lambda good: retold(good, []), "the fields are not settings"),
    "a deep text": (lambda good: retold(good, b"[" * 10**6), "is no JSON.*recursion"),
    "a deep value": (
        lambda good: retold(good, b'{"a":' * 900 + b"1" + b"}" * 900),
        "the fields are not settings",
    ),
    "a long number": (lambda good: retold(good, b"1" * 10**6), "too many digits"),
    "a long text": (lambda good: retold(good, b" " * 2**20 + b"1"), "longer than"),
    "a field missing": (told(lambda t: t.pop("seconds")), "the fields are not"),
    "a field more": (put("pickle", 1), "the fields are not"),
    "text in epoch": (put("epoch", "1"), "its epoch cannot be '1'"),
    "half an epoch": (put("epoch", 1.5), "its epoch cannot be 1.5"),
    "a true epoch": (put("epoch", True), "its epoch cannot be True"),
    "an epoch below zero": (put("epoch", -1), "its epoch cannot be -1"),
    "another epoch": (put("epoch", 2), "the history of its 2 epochs is not in it"),
    "too many epochs": (put("epoch", 10**9), "history of its 1000000000 epochs is not"),
    "a step below zero": (put("step", -3), "its step cannot be -3"),
    "a step of none": (put("step", None), "its step cannot be None"),
    "a step too far": (put("step", 10**6), "the 3 steps of an epoch, got step 1000000"),
    "a loss of no step": (put("loss", 1.0), "no step of its epoch was taken"),
    "no loss": (put("loss", float("nan")), "its loss cannot be nan"),
    "a loss in words": (put("loss", "1"), "its loss cannot be '1'"),
    "time backwards": (put("seconds", -1.0), "its seconds cannot be -1.0"),
    "no end of time": (put("seconds", float("inf")), "its seconds cannot be inf"),
    "half a byte": (put("bytes_moved", 0.5), "its bytes_moved cannot be 0.5"),
    "no history": (parts(lambda p: p.pop(1)), "the history of its 1 epoch is not in"),
    "a longer history": (
        lambda g: recounted(g, [[0.5, 0.5, 1.0, 8.0]] * 2), "history of its 1 epoch",
    ),
    "a history of small numbers": (
        lambda g: recounted(g, np.ones((1, 4), np.uint8)), "history of its 1 epoch",
    ),
    "a history of half the digits": (
        lambda g: recounted(g, np.ones((1, 4), "<f4")), "history of its 1 epoch",
    ),
    "an accuracy of 2": (
        lambda g: recounted(g, [[0.5, 2.0, 1.0, 8.0]]), "its epoch 0 cannot be",
    ),
    "a loss that is none": (
        lambda g: recounted(g, [[np.nan, 0.5, 1.0, 8.0]]), "its epoch 0 cannot be",
    ),
    "half a byte moved": (
        lambda g: recounted(g, [[0.5, 0.5, 1.0, 8.5]]), "its epoch 0 cannot be",
    ),
    "bytes without end": (
        lambda g: recounted(g, [[0.5, 0.5, 1.0, np.inf]]), "its epoch 0 cannot be",
    ),
    "no settings": (put("settings", {}), "its settings cannot be"),
    "settings as text": (put("settings", "x"), "its settings cannot be"),
    "a setting of lists": (put("settings", "lr", [1]), "its settings cannot be"),
    "another dtype": (put("settings", "dtype", "object"), "its settings cannot be"),
    "a dtype that the arrays lack": (
        put("settings", "dtype", "float64"), "an array is of float32, in a run of",
    ),
    "rates in words": (put("settings", "rates", "fast"), "its settings cannot be"),
    "a batch of none": (put("settings", "batch_size", 0), "its settings cannot be"),
    "another model": (put("settings", "model", "big"), "go on with model 'big'"),
    "counts as text": (put("counts", "8"), "its counts cannot be '8'"),
    "100,000 replicas": (put("counts", "buffers", [1] * 10**5), "its arrays are not"),
    "10**12 parameters": (put("counts", "params", 10**12), "its arrays are not"),
    "as many as digits go": (put("counts", "state", 10**99), "its arrays are not"),
    "other counts": (put("counts", "params", 3), "its arrays are not"),
    "a state for parameters": (
        told(lambda t: t["counts"].update(params=8, state=0)), "its arrays are not",
    ),
    # the set of members
    "an array missing": (parts(lambda p: p.pop()), "its arrays are not those"),
    "an array more": (
        parts(lambda p: p.append(("x.npy", npy(np.zeros(1, "<f4"))))),
        "its arrays are not those",
    ),
    "an array twice": (parts(lambda p: p.append(p[1])), "stands in it twice"),
    "another order": (parts(lambda p: p.reverse()), "its arrays are not those"),
    "other names": (member(2, "state/0.npy", None), "in it twice"),
    "a strange name": (member(2, "../x", None), "its arrays are not"),
    # the zip file
    "an encrypted member": (marked(1, 0), "encrypted"),
    "sizes after the data": (marked(8, 0), "made elsewhere"),
    "deflate": (lambda g: packed(members(g), zipfile.ZIP_DEFLATED), "compressed"),
    "bzip2": (lambda g: packed(members(g), zipfile.ZIP_BZIP2), "compressed"),
    "lzma": (lambda g: packed(members(g), zipfile.ZIP_LZMA), "compressed"),
    "an unknown method": (marked(0, 99), "compressed"),
    "something before it": (lambda g: sealed(b"MZ" + g), "something else .* byte 0"),
    "something between": (
        lambda g: sealed(g.replace(b"PK\1\2", b"????PK\1\2", 1)), "something else than",
    ),
    "a member of 2**60 bytes": (
        lambda g: sealed(g.replace(g[:200][39:55], struct.pack("<2Q", 2**60, 2**60))),
        "larger than the file",
    ),
    "no members": (lambda g: packed([]), "something else than a member at byte 0"),
    # the arrays
    "40 TB": (shape("(10000000000000,)"), "bytes of data, not 40000000000000"),
    "more than numbers go": (shape(f"({'9' * 40},)"), "header that d2lmulti does not"),
    "2**76 numbers": (shape(f"({2**38}, {2**38})"), "bytes of data, not"),
    "none, of a huge shape": (shape(f"({10**18}, 0)"), "bytes of data, not 0"),
    "100 dimensions": (shape("(" + "1, " * 99 + "1568)"), "bytes of data"),
    "below zero": (shape("(-784, -2)"), "header that d2lmulti does not write"),
    "a longer shape": (shape("(784, 3)"), "6272 bytes of data, not 9408"),
    "a shorter shape": (shape("(784, 1)"), "6272 bytes of data, not 3136"),
    "turned": (shape("(2, 784)"), r"parameters of shapes \[\(784, 2\)"),
    "numbers of another size": (shape("(784,)", "<f8"), "an array is of float64"),
    "highest byte first": (shape("(784, 2)", ">f4"), "header that d2lmulti does not"),
    "integers": (shape("(784, 2)", "<i4"), "header that d2lmulti does not write"),
    "objects": (shape("(784,)", "|O8"), "header that d2lmulti does not write"),
    "pickled objects": (
        member(2, None, npy(np.array([{}], object))), "header that d2lmulti does not",
    ),
    "code in a header": (shape("(__import__('os').getpid(),)"), "header that d2lmulti"),
    "a deep header": (shape("(" * 5000), "header that d2lmulti does not write"),
    "column by column": (
        lambda g: reheaded(g, 2, lambda h: h.replace(b"False", b"True ")),
        "header that d2lmulti does not write",
    ),
    "a header of version 2": (
        lambda g: reheaded(g, 2, lambda h: h[:6] + b"\2\0" + h[8:]), "header that",
    ),
    "a wrong length": (
        lambda g: reheaded(g, 2, lambda h: h[:8] + b"\x77" + h[9:]), "another length",
    ),
    # the seal
    "an older format": (
        lambda g: packed(members(g), prefix=PREFIX.replace(b"003", b"001")),
        "has format 1, of another version .* reads format 3",
    ),
    "a newer format": (
        lambda g: packed(members(g), prefix=PREFIX.replace(b"003", b"004")),
        "has format 4, of another version",
    ),
    "another kind": (
        lambda g: packed(members(g), prefix=PREFIX.replace(b"check", b"chock")),
        "does not end with the seal of a checkpoint",
    ),
    "no seal": (lambda g: g[:-96], "does not end with the seal of a checkpoint"),
    "a wrong seal": (lambda g: g[:-64] + b"0" * 64, "checksum is wrong"),
}  # fmt: skip
