"""The landing page lists every chapter, with numbers that stand on its page."""

from __future__ import annotations

import re

import nbformat
import pytest
import reading_minutes
import yaml
from book.notebooks import ROOT
from notebook_rules import printed

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
INDEX = (ROOT / "chapters" / "index.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| \{doc\}`(\w+)` \| (.*) \|$", INDEX, re.MULTILINE))
APPENDIX = {"backend", "read_the_library"}


def test_every_notebook_has_a_row():
    listed = {
        entry["file"].removeprefix("chapters/")
        for part in TOC["parts"]
        for entry in part["chapters"]
    }
    notebooks = {n for n in listed if (ROOT / "chapters" / f"{n}.ipynb").exists()}
    assert set(ROWS) == notebooks - APPENDIX


@pytest.mark.parametrize("chapter", ROWS)
def test_its_numbers_stand_on_the_page(chapter):
    nb = nbformat.read(ROOT / "chapters" / f"{chapter}.ipynb", as_version=4)
    seen = [cell.source for cell in nb.cells]
    for cell in nb.cells:
        seen += [printed(output) for output in cell.get("outputs", [])]
    page = re.sub(r"\s+", " ", "\n".join(seen))
    numbers = re.findall(r"\*\*(.+?)\*\*", ROWS[chapter])
    assert numbers, "a row says one number, in bold"
    shown = [n for n in numbers if re.search(rf"(?<![\d.,]){re.escape(n)}", page)]
    assert shown == numbers
    minutes, exact = int(ROWS[chapter].split()[-1]), reading_minutes.minutes(chapter)
    again = "run: python tools/reading_minutes.py"
    assert abs(minutes - exact) <= max(10, exact / 4), again
