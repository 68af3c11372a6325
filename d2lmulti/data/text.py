"""A short story of the book's own as character ids, for the transformer.

"The Four Sisters and the Bell" was written for this book and is in the public domain
(CC0). An alphabet of 36 can be shared evenly by 2, 3 and 4 devices, which a layer split
by vocabulary needs. Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from ..checks import check_count, check_kind
from ..errors import InvalidInput

ALPHABET = "abcdefghijklmnopqrstuvwxyz \n.,:;?!'\""


def read_story() -> str:
    """Return the story in small letters: 5,491 characters of `ALPHABET`."""
    story = files(__package__).joinpath("stories", "four_sisters.txt")
    return story.read_text("utf-8").lower()


def encode(text: str) -> np.ndarray:
    """Turn characters into ids, int64; raise `InvalidInput` outside of `ALPHABET`.

    >>> encode("a bad")
    array([ 0, 26,  1,  0,  3])
    """
    unknown = sorted(set(text) - set(ALPHABET))
    if unknown:
        raise InvalidInput(f"expected characters of {ALPHABET!r}, got {unknown[0]!r}")
    return np.array([ALPHABET.index(character) for character in text], np.int64)


def decode(ids: np.ndarray) -> str:
    """Turn ids back into characters.

    >>> decode(encode("bell"))
    'bell'
    """
    return "".join(ALPHABET[i] for i in ids)


def cut_pieces(text: str, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text into sequences X (n, length) and the characters y that follow each.

    y is X one place further on; what does not fill a sequence is left out. Raises
    `InvalidInput` unless there are at least ten sequences.
    """
    check_kind("text", text, str, "a text")
    longest = (len(text) - 1) // 10
    check_count("length", length, max=longest)
    ids = encode(text)
    n = (len(ids) - 1) // length
    X, y = ids[: n * length], ids[1 : n * length + 1]
    return X.reshape(n, length), y.reshape(n, length)
