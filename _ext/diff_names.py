"""A diff of two included files shows their names, not the paths of this machine."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def named(lines: list[str]) -> list[str]:
    """Shorten the paths in the first two lines of a unified diff."""
    short = []
    for sign, line in zip(("--- ", "+++ "), lines, strict=False):
        short.append(sign + PurePath(line.removeprefix(sign).rstrip("\n")).name + "\n")
    return short + lines[2:]


def shorten(_: Sphinx, doctree: nodes.document) -> None:
    """Shorten them in every diff of a page."""
    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "udiff":
            text = "".join(named(block.astext().splitlines(keepends=True)))
            block.rawsource, block[:] = text, [nodes.Text(text)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("doctree-read", shorten)
    return {"parallel_read_safe": True}
