"""Write on the landing page how many minutes each chapter takes to study.

100 words of text per minute and two minutes for every code cell that one reader sees
(a set of tabs counts once), rounded to ten minutes.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from notebook_rules import asked_by, code_cells, words

CHAPTERS = Path(__file__).resolve().parent.parent / "chapters"
CARD = re.compile(
    r"^(:::\{grid-item-card\} \{doc\}`(\w+)`\n:footer: )(\d+)(?= minutes$)",
    re.MULTILINE,
)


def minutes(chapter: str) -> float:
    """Return the minutes of a chapter, not rounded."""
    nb = nbformat.read(CHAPTERS / f"{chapter}.ipynb", as_version=4)
    texts = [c.source for c in nb.cells if c.cell_type == "markdown"]
    tabs = [asked_by(cell).tab for cell in code_cells(nb)]
    return sum(map(words, texts)) / 100 + 2 * sum(
        tab in (None, "torch") for tab in tabs
    )


def rewritten(index: str) -> str:
    """Return the landing page with every number as it is now."""
    return CARD.sub(
        lambda card: f"{card[1]}{max(10, round(minutes(card[2]), -1)):g}", index
    )


if __name__ == "__main__":
    page = CHAPTERS / "index.md"
    page.write_text(rewritten(page.read_text("utf-8")), encoding="utf-8")
