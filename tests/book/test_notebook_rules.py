"""Every chapter keeps the rules of tools/notebook_rules.py."""

import nbformat
import notebook_rules
import pytest
from book.notebooks import ROOT

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_every_chapter_keeps_the_rules(path):
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3"
    assert notebook_rules.source_rules(nb) + notebook_rules.output_rules(nb) == []
