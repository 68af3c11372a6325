"""The landing page lists every chapter, with numbers that stand on its page."""

from __future__ import annotations

import re

import nbformat
import pytest
import reading_minutes
import yaml
from book.notebooks import ROOT, code, text
from notebook_rules import printed

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
INDEX = (ROOT / "chapters" / "index.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| \{doc\}`(\w+)` \| (.*) \|$", INDEX, re.MULTILINE))
APPENDIX = {"backend", "read_the_library"}


def on_the_page(chapter: str) -> str:
    """Return what a reader of the chapter sees: its text and what its cells print."""
    nb = nbformat.read(ROOT / "chapters" / f"{chapter}.ipynb", as_version=4)
    seen = [cell.source for cell in nb.cells]
    for cell in nb.cells:
        seen += [printed(output) for output in cell.get("outputs", [])]
    return "\n".join(seen)


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
    numbers = re.findall(r"\*\*(.+?)\*\*", ROWS[chapter])
    page = re.sub(r"\s+", " ", on_the_page(chapter))
    assert numbers, "a row says one number, in bold"
    shown = [n for n in numbers if re.search(rf"(?<![\d.,]){re.escape(n)}", page)]
    assert shown == numbers


def test_every_row_says_how_many_minutes_and_none_is_stale():
    shown = reading_minutes.said(INDEX)
    assert set(shown) == set(ROWS)
    exact = {name: reading_minutes.of_chapter(name) for name in shown}
    stale = [n for n in shown if reading_minutes.is_stale(shown[n], exact[n])]
    assert not stale, f"python tools/reading_minutes.py writes these again: {stale}"


def test_minutes_of_words_and_of_the_cells_that_one_reader_sees():
    tabs = [code(f"%%tab {key}\nx = 1") for key in ("torch", "mxnet", "paddle")]
    cells = [text("word " * 400), code("x = 1"), *tabs, code("%%tab torch\nx = 2")]
    page = nbformat.v4.new_notebook(cells=cells)
    assert reading_minutes.minutes(page) == 4 + 2 * (1 + 2)
    assert [reading_minutes.rounded(x) for x in (1, 14, 16, 62)] == [10, 10, 20, 60]


def test_a_page_that_has_grown_is_stale_and_a_small_edit_is_not():
    assert not reading_minutes.is_stale(20, exact=29)
    assert reading_minutes.is_stale(20, exact=31)
    assert not reading_minutes.is_stale(60, exact=79)
    assert reading_minutes.is_stale(60, exact=81)


def test_the_total_is_the_sum_of_the_column():
    shown = reading_minutes.said(INDEX).values()
    assert abs(reading_minutes.said_in_total(INDEX) - sum(shown) / 60) <= 1
    assert reading_minutes.hours([50, 60, 70]) == 3


def test_the_column_and_the_total_are_written_again_and_nothing_else():
    wrong = re.sub(r"\| \d+ \|$", "| 900 |", INDEX, flags=re.MULTILINE)
    assert wrong != INDEX
    again = reading_minutes.rewritten(wrong)
    numbers = re.compile(r"\d+ \|$|\d+ hours", re.MULTILINE)
    assert numbers.sub("", again) == numbers.sub("", INDEX)
    assert 900 not in reading_minutes.said(again).values()
    said = reading_minutes.said(again).values()
    assert reading_minutes.said_in_total(again) == reading_minutes.hours(said)
