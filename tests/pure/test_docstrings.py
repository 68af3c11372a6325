"""Pieces of Python's own documentation, to tell from which module each is."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from d2lmulti.errors import DataUnavailable, InvalidInput
from d2lmulti_book.docstrings import MODULES, docstrings, read_docstrings


@pytest.fixture(scope="module")
def pieces() -> list[tuple[list[str], str]]:
    return read_docstrings(32)


def test_every_module_has_many_different_pieces(pieces: list) -> None:
    modules = [module for _, module in pieces]
    assert set(modules) == set(MODULES)
    assert min(modules.count(module) for module in MODULES) >= 30
    assert len({tuple(words) for words, _ in pieces}) == len(pieces)
    assert {len(words) for words, _ in pieces} <= set(range(8, 33))


def test_a_known_sentence_is_there_with_its_module(pieces: list) -> None:
    found = {module for words, module in pieces if "differencing" in words}
    assert found == {"difflib"}  # "... human-readable differencing ..."


def test_ids_spell_the_pieces_and_repeat() -> None:
    data, again = docstrings(500, 32), docstrings(500, 32)
    assert data.train_X.shape[1] == 32 and data.train_X.dtype == np.int64
    assert 0 <= data.train_X.min() and data.train_X.max() == 499
    assert len(data.test_X) == pytest.approx(len(data.train_X) / 4, abs=1)
    assert set(data.train_y) == set(range(len(MODULES)))
    assert (data.test_X == again.test_X).all() and (data.test_y == again.test_y).all()
    counts = np.bincount(data.train_X.ravel(), minlength=500)[2:]
    assert (np.diff(counts) <= 0).all()  # frequent words have small ids
    lengths = (data.test_X > 0).sum(1)
    for row, length in zip(data.test_X, lengths, strict=True):
        assert (row[:length] > 0).all() and not row[length:].any()  # filled at the end


@pytest.mark.parametrize("length", [7, 0, 8.0])
def test_pieces_too_short_are_refused(length: object) -> None:
    with pytest.raises(InvalidInput, match="at least 8 as length, got"):
        read_docstrings(length)  # type: ignore[arg-type]


def test_a_vocabulary_too_small_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 3 as words, got 2"):
        docstrings(2)


def test_a_python_without_sources_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(DataUnavailable, match="source of Python's module asyncio"):
        read_docstrings()
