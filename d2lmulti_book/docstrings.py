"""A text data set with labels that needs no download: Python's own documentation.

Every sequence is cut from a docstring of the standard library, and its label is the
module of the docstring. The texts are read from the source files, which are not run.
They differ slightly between releases of Python. Chapter: *tensorflow*.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from d2lmulti.checks import check_count
from d2lmulti.data import Dataset
from d2lmulti.errors import DataUnavailable

MODULES = (
    "asyncio",
    "difflib",
    "email",
    "http",
    "inspect",
    "ipaddress",
    "logging",
    "statistics",
    "threading",
    "typing",
)
SHORTEST = 8  # words; fewer do not identify a module


def read_docstrings(length: int = 40) -> list[tuple[list[str], str]]:
    """Return sequences of at least 8 and at most `length` words, with their modules.

    Words are in lowercase, without digits and punctuation. Raises `InvalidInput` for a
    length below 8 and `DataUnavailable` if Python is installed without its source
    files.
    """
    check_count("length", length, min=SHORTEST)
    # A docstring that appears several times counts once.
    pieces: dict[tuple[str, ...], str] = {}
    for module in MODULES:
        for path in _source_files(module):
            for text in _docstrings(path):
                words = re.findall(r"[a-z]+", text.lower())
                for i in range(0, len(words) - SHORTEST + 1, length):
                    if len(piece := words[i : i + length]) >= SHORTEST:
                        pieces.setdefault(tuple(piece), module)
    return [(list(words), module) for words, module in pieces.items()]


def docstrings(words: int = 2000, length: int = 40) -> Dataset:
    """Load the sequences as ids (n, `length`) of int64, to classify them by module.

    The `words` - 2 most frequent words of the training part have ids from 2, 1 is any
    other word, and 0 is padding. A fifth of the sequences is for testing, chosen with a
    fixed seed. Raises `InvalidInput` for fewer than 3 words, and as `read_docstrings`.
    """
    check_count("words", words, min=3)
    pieces = read_docstrings(length)
    classes = tuple(sorted({module for _, module in pieces}))
    order = np.random.default_rng(0).permutation(len(pieces))
    train, test = np.split(order, [len(pieces) * 4 // 5])
    counts = Counter(word for i in train for word in pieces[i][0])
    ids = {word: i for i, (word, _) in enumerate(counts.most_common(words - 2), 2)}
    X = np.zeros((len(pieces), length), np.int64)
    for row, (piece, _) in zip(X, pieces, strict=True):
        row[: len(piece)] = [ids.get(word, 1) for word in piece]
    y = np.array([classes.index(module) for _, module in pieces])
    return Dataset("docstrings", X[train], y[train], X[test], y[test], classes)


def _source_files(module: str) -> list[Path]:
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted((library / module).glob("**/*.py")) or [library / f"{module}.py"]
    files = [path for path in files if "test" not in path.parts]
    if not files[0].exists():
        raise DataUnavailable(
            f"expected the source of Python's module {module} in {library}, got none; "
            "use a Python with the source of its standard library"
        )
    return files


def _docstrings(path: Path) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text
