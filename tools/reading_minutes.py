"""Say on the landing page how many minutes each chapter takes to study.

    python tools/reading_minutes.py  # rewrite the column and the total in index.md

The rule: 100 words of text per minute and two minutes for every code cell that one
reader sees (a set of tabs counts once), rounded to ten minutes; the total is rounded to
hours. Exercises are read, but not solved, and running the code is not counted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat
from notebook_rules import asked_by, code_cells

from d2lmulti.files import write_atomically
from d2lmulti_book.notebook import TABS

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "chapters" / "index.md"
WORDS_A_MINUTE, MINUTES_A_CELL, ROUNDED_TO = 100, 2, 10
WITHIN_MINUTES, WITHIN_SHARE = 10, 0.25  # an edit of a page need not touch the column
_ROW = re.compile(r"^\| \{doc\}`(\w+)` \|.*\| *(\d+) *\|$", re.MULTILINE)
_TOTAL = re.compile(r"(?<=about )\d+(?=\s+hours\s+in\s+total)")
# What nobody reads as words: options of a directive, addresses, formulas set apart.
_NO_WORDS = re.compile(r"^:[\w-]+:.*$|\]\([^)]*\)|<[^>]*>|^\$\$.*?^\$\$", re.M | re.S)


def minutes(notebook: nbformat.NotebookNode) -> float:
    """Return the minutes of a chapter, not rounded."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    words = sum(
        len(re.findall(r"[^\W_][\w'’-]*", _NO_WORDS.sub(" ", text))) for text in texts
    )
    keys = [asked_by(cell).tab for cell in code_cells(notebook)]
    seen = [key for key in keys if key is None or key not in TABS]
    cells = len(seen) + max(keys.count(tab) for tab in TABS)
    return words / WORDS_A_MINUTE + cells * MINUTES_A_CELL


def rounded(exact: float) -> int:
    """Round as the column does."""
    return max(ROUNDED_TO, ROUNDED_TO * round(exact / ROUNDED_TO))


def of_chapter(name: str) -> float:
    """Return the minutes of a chapter of the book."""
    path = ROOT / "chapters" / f"{name}.ipynb"
    return minutes(nbformat.read(path, as_version=4))


def said(index: str) -> dict[str, int]:
    """Return what the landing page says: chapter -> minutes."""
    return {name: int(shown) for name, shown in _ROW.findall(index)}


def is_stale(shown: int, exact: float) -> bool:
    """Tell whether a number of the page is too far from the chapter as it is."""
    return abs(shown - exact) > max(WITHIN_MINUTES, WITHIN_SHARE * exact)


def rewritten(index: str) -> str:
    """Return the landing page with every number as it is now."""

    def row(match: re.Match[str]) -> str:
        head = match[0][: match.start(2) - match.start()]
        return f"{head}{rounded(of_chapter(match[1]))} |"

    index = _ROW.sub(row, index)
    return _TOTAL.sub(str(hours(said(index).values())), index)


def hours(shown: Iterable[int]) -> int:
    """Return the whole hours that the minutes of all chapters add up to."""
    return round(sum(shown) / 60)


def said_in_total(index: str) -> int:
    """Return the hours that the landing page says for all chapters."""
    return int(_TOTAL.findall(index)[0])


def main() -> int:
    """Rewrite the column and the total."""
    index = INDEX.read_text(encoding="utf-8")
    write_atomically(INDEX, rewritten(index).encode())
    for name, shown in said(rewritten(index)).items():
        print(f"{name:20} {of_chapter(name):6.1f} minutes, said as {shown}")
    print(f"in total {said_in_total(rewritten(index))} hours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
