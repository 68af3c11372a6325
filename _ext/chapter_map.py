"""The directive `chapter-map`: which chapter builds on which, drawn from their lines.

The first part of a chapter says "builds on" or "You need", with links. The drawing has
a panel for each part of the book. In it, a chapter stands below the last chapter of
the same part that it builds on; what it needs from elsewhere is named in its box.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from docutils import nodes
from interactive import Interactive, rendered
from sphinx.application import Sphinx

NEEDS = re.compile(r"(?:builds on|You need)\s(.*?)\.(?=\s|$)", re.DOTALL)
LINK = re.compile(r"(at the end, on )?\{doc\}`(\w+)`")
OTHERS_TOO = "need other chapters too"  # said by a page whose needs differ by section
WIDTH, LINE, GAP, INDENT, LETTER = 330, 15, 6, 18, 6.9


class Chapter(NamedTuple):
    """A page with the names of the pages that it builds on."""

    number: int
    name: str
    title: str
    part: int
    needs: list[str]
    at_the_end: list[str]  # what only its last part builds on
    others_too: bool


def opening(path: Path) -> str:
    """Return the first cell of a notebook, or a page of Markdown up to a heading."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return "".join(json.loads(text)["cells"][0]["source"])
    return text.partition("\n## ")[0]


def chapters_of(root: Path) -> tuple[list[str], list[Chapter]]:
    """Return the numbered parts of the book and their chapters, in order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    captions, found = [], []
    for part in toc["parts"]:
        if "numbered" not in part:
            continue
        captions.append(part["caption"])
        for entry in part["chapters"]:
            (path,) = root.glob(f"{entry['file']}.*")
            text = opening(path)
            links = [
                link for said in NEEDS.findall(text) for link in LINK.findall(said)
            ]
            title = re.search(r"^# (.+)$", text, re.MULTILINE)
            found.append(
                Chapter(
                    len(found) + 1,
                    path.stem,
                    title[1].replace("`", "") if title else path.stem,
                    len(captions) - 1,
                    [name for late, name in links if not late],
                    [name for late, name in links if late],
                    OTHERS_TOO in text,
                )
            )
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
    """Order each part as a tree: chapters with depth and what else they build on."""
    found: list[tuple[Chapter, int, list[str]]] = []

    def add(part: int, parent: str, depth: int) -> None:
        for chapter in chapters.values():
            if chapter.part != part:
                continue
            needs = nearest(chapter, chapters)
            here = [name for name in needs if chapters[name].part == part]
            above = here[-1] if here else ""
            if above == parent:
                others = [name for name in needs if name != above]
                found.append((chapter, depth, others))
                add(part, chapter.name, depth + 1)

    for part in sorted({chapter.part for chapter in chapters.values()}):
        add(part, "", 0)
    return found


def short(title: str) -> str:
    """Return a title without what follows its colon or question mark."""
    return re.split(r"(?<=\?) |:", title)[0]


def heading(chapter: Chapter) -> str:
    """Return number and title; a single word before a colon would say too little."""
    head = short(chapter.title)
    return f"{chapter.number} {head if ' ' in head else chapter.title}"


def condition(
    chapter: Chapter, lead: str, needs: list[str], chapters: dict[str, Chapter]
) -> str:
    """Say what a chapter builds on; `lead` stands before the names in `needs`."""

    def named(names: list[str]) -> str:
        return ", ".join(
            f"{chapters[name].number} {short(chapters[name].title)}" for name in names
        )

    said = [f"{lead} {named(needs)}"] * bool(needs)
    if chapter.at_the_end:
        said.append(f"at the end, {named(chapter.at_the_end)}")
    if chapter.others_too:
        said.append("and others, by program")
    return "; ".join(said)


def panel(
    part: list[tuple[Chapter, int, list[str]]], chapters: dict[str, Chapter]
) -> dict[str, Any]:
    """Place a box per chapter of a part, and lines to those that build on it."""
    boxes, lines = [], []
    last: dict[int, float] = {}  # the lower edge of the last box at a depth
    y = 2
    for chapter, depth, others in part:
        x = 2 + INDENT * depth
        room = WIDTH - x - 20
        title = textwrap.wrap(heading(chapter), int(room / LETTER))
        words = condition(chapter, "and" if depth else "after", others, chapters)
        also = textwrap.wrap(words, int(room / 6))
        height = 10 + LINE * len(title + also)
        if depth:
            start, middle = x - INDENT + 6, y + height / 2
            lines.append(f"M{start} {last[depth - 1]}V{middle}H{x}")
        last[depth] = y + height
        box = {"name": chapter.name, "x": x, "y": y, "height": height}
        boxes.append(box | {"title": title, "also": also})
        y += height + GAP
    return {"height": y - GAP + 2, "lines": "".join(lines), "boxes": boxes}


def drawing(root: Path) -> str:
    """Draw the map: a panel for each part of the book, and a list.

    A pointer on a chapter's box outlines what it builds on.
    """
    captions, found = chapters_of(root)
    chapters = {chapter.name: chapter for chapter in found}
    placed = rows(chapters)
    panels = {
        caption: panel([row for row in placed if row[0].part == number], chapters)
        for number, caption in enumerate(captions)
    }
    listed = []
    for chapter in found:
        needs = sorted(chapter.needs, key=list(chapters).index)
        listed.append((chapter, condition(chapter, "builds on", needs, chapters)))
    needed = {name: sorted(all_needed(name, chapters)) for name in chapters}
    return rendered(
        "chapter_map.html",
        outlines=[[name, *names] for name, names in needed.items() if names],
        panels=panels,
        listed=listed,
        width=WIDTH,
        line=LINE,
    )


class ChapterMap(Interactive):
    """The map; the only figure of its page, so it has no number and no caption."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        (figure,) = super().run()
        return figure.children[:1]

    def page(self, up: str) -> str:
        """Draw it, and again when a chapter changes."""
        root = Path(self.env.srcdir)
        folder = root / "chapters"
        for path in [root / "_toc.yml", *folder.glob("*.ipynb"), *folder.glob("*.md")]:
            self.env.note_dependency(str(path))
        return drawing(root)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("chapter-map", ChapterMap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
