"""What the tests of the data sets may ask for: a data folder, and no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from pure.idx_files import write_set

from d2lmulti import data as fashion_mnist

CLOSED = "http://127.0.0.1:9/"  # nobody listens there: as good as no network


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder; no test reaches a real host or the user's own cache."""
    monkeypatch.setattr(fashion_mnist, "URL", CLOSED)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("D2LMULTI_QUIET", "1")
    monkeypatch.setenv("D2LMULTI_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def own_set(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small files whose checksums count as the published ones."""
    return write_set(data_folder / "fashion_mnist", monkeypatch)
