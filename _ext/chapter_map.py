"""The directive `chapter-map`: which chapter builds on which, drawn from their lines.

The first cell of a chapter says "builds on" or "You need", with links. Below the last
of these chapters in the order of the book it stands in the drawing, one row each, so
that the drawing is as readable on a telephone; the others are named in its row.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from interactive import Interactive
from sphinx.application import Sphinx

NEEDS = re.compile(r"(?:builds on|You need)\s(.*?)\.(?=\s|$)", re.DOTALL)
WIDTH, LINE, GAP, INDENT, LEFT, LETTER = 350, 15, 8, 18, 10, 6.9


class Chapter(NamedTuple):
    """A page with the names of the pages that it builds on."""

    name: str
    title: str
    part: int
    needs: list[str]


def chapters_of(root: Path) -> tuple[list[str], list[Chapter]]:
    """Return the parts of the book and their notebooks, in order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    captions, found = [], []
    for part in toc["parts"]:
        files = [root / f"{entry['file']}.ipynb" for entry in part["chapters"]]
        paths = [path for path in files if path.exists()]
        captions += [part["caption"]] * bool(paths)
        for path in paths:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            text = "".join(cells[0]["source"])
            needs = [
                name
                for sentence in NEEDS.findall(text)
                for name in re.findall(r"\{doc\}`(\w+)`", sentence)
            ]
            title = re.search(r"^# (.+)$", text, re.MULTILINE)
            words = title[1].replace("`", "") if title else path.stem
            found.append(Chapter(path.stem, words, len(captions) - 1, needs))
    return captions, found


def all_needed(name: str, chapters: dict[str, Chapter]) -> set[str]:
    """Return all that a chapter builds on, directly or not."""
    direct = set(chapters[name].needs)
    return direct.union(*(all_needed(need, chapters) for need in direct))


def nearest(chapter: Chapter, chapters: dict[str, Chapter]) -> list[str]:
    """Return what a chapter builds on, without what these chapters build on."""
    further = set().union(*(all_needed(need, chapters) for need in chapter.needs))
    left = set(chapter.needs) - further
    return sorted(left, key=list(chapters).index)


def rows(chapters: dict[str, Chapter]) -> list[tuple[Chapter, int, list[str]]]:
    """Order the chapters as a tree: each with its depth and what else it builds on."""
    found: list[tuple[Chapter, int, list[str]]] = []

    def add(parent: str, depth: int) -> None:
        for chapter in chapters.values():
            *others, below = ["", *nearest(chapter, chapters)]
            if below == parent:
                found.append((chapter, depth, [name for name in others if name]))
                add(chapter.name, depth + 1)

    add("", 0)
    return found


def short(title: str) -> str:
    """Return a title without what follows its colon or question mark."""
    return re.split(r"(?<=\?) |:", title)[0]


def drawing(root: Path) -> str:
    """Draw the map: a box per chapter, lines to those that build on it, and a list."""
    captions, found = chapters_of(root)
    names = {chapter.name for chapter in found}
    chapters = {
        chapter.name: chapter._replace(needs=[n for n in chapter.needs if n in names])
        for chapter in found
    }
    boxes, lines, items = [], [], []
    last: dict[int, float] = {}  # the lower edge of the last box at a depth
    y = 4
    for chapter, depth, others in rows(chapters):
        x = LEFT + INDENT * depth
        width = WIDTH - x - 2
        title = textwrap.wrap(short(chapter.title), int((width - 18) / LETTER))
        also = ", ".join(short(chapters[name].title) for name in others)
        said = [
            *title,
            *textwrap.wrap(f"and {also}" * bool(others), int((width - 18) / 6)),
        ]
        height = 10 + LINE * max(2, len(said))
        top = y + height / 2 - LINE * len(said) / 2 + 11
        texts = "".join(
            f'<text class="{"" if number < len(title) else "also"}" x="{x + 14}" '
            f'y="{top + LINE * number}">{html.escape(words)}</text>'
            for number, words in enumerate(said)
        )
        if depth:
            start, middle = x - INDENT + 6, y + height / 2
            lines.append(f"M{start} {last[depth - 1]}V{middle}H{x}")
        last[depth] = y + height
        boxes.append(
            f'<a href="{chapter.name}.html"><g class="part{chapter.part}">'
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'
            f'<rect class="mark" x="{x}" y="{y}" width="6" height="{height}"/>'
            f"{texts}</g></a>"
        )
        y += height + GAP
        needs = ", ".join(short(chapters[name].title) for name in chapter.needs)
        items.append(
            f'<li><a href="{chapter.name}.html">{html.escape(chapter.title)}</a>'
            + f" builds on {html.escape(needs)}" * bool(needs)
            + ".</li>"
        )
    legend = "".join(
        f'<li class="part{n}"><i></i>{html.escape(caption)}</li>'
        for n, caption in enumerate(captions)
    )
    return f"""\
<div class="chapter-map">
<ul class="legend">{legend}</ul>
<svg viewBox="0 0 {WIDTH} {y}" role="group" \
aria-label="Map: each chapter stands below one that it builds on">
<path d="{"".join(lines)}"/>
{"".join(boxes)}
</svg>
<details><summary>The map as a list</summary><ul>{"".join(items)}</ul></details>
</div>
"""


class ChapterMap(Interactive):
    """The map as a figure."""

    def page(self, up: str) -> str:
        """Draw it, and again when a chapter changes."""
        root = Path(self.env.srcdir)
        for path in [root / "_toc.yml", *(root / "chapters").glob("*.ipynb")]:
            self.env.note_dependency(str(path))
        return drawing(root)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("chapter-map", ChapterMap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
