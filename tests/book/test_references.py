"""Every reference can be followed and told from every other."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("pybtex")  # comes with Jupyter Book

from book.notebooks import ROOT
from pybtex.database import Entry, parse_file

LINKS = {
    "doi": r"10\.\d{4,9}/\S+",
    "eprint": r"\d{4}\.\d{4,5}",  # arXiv's numbers since 2007
    "url": r"https://\S+",
}


def extension():
    """Import _ext/author_year.py, which lies in no package."""
    path = ROOT / "_ext" / "author_year.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(path: Path = ROOT / "chapters" / "references.bib") -> dict[str, Entry]:
    return dict(parse_file(str(path)).entries)


@pytest.mark.parametrize("key", entries())
def test_every_reference_has_a_link(key: str) -> None:
    fields = entries()[key].fields
    links = [name for name in LINKS if name in fields]
    assert links, f"{key} has no doi, no eprint (arXiv) and no url"
    for name in links:
        assert re.fullmatch(LINKS[name], fields[name]), f"{key}: {name}"


def test_labels_are_different_and_letters_only_where_needed() -> None:
    labels = list(extension().AuthorYearLabels().format_labels(entries().values()))
    assert len(set(labels)) == len(labels) > 40
    assert {"Chen et al., 2016a", "Chen et al., 2016b"} <= set(labels)
    assert "Goyal et al., 2017" in labels and "Kingma and Ba, 2015" in labels
