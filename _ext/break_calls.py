"""Let a call in a table break after a dot, a bracket, or a comma, not within a word.

Browsers break code at spaces only. In a narrow column that leaves the choice between a
table that is too wide and names that are cut anywhere.
"""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

LONG = 24  # letters without a break; longer names may break after an underscore, too
AFTER = re.compile(r"(?<=[.(\[,=/])(?=[^\s.,)\]=/])(?!(?:py|pt|h5)\b)")
WITHIN = re.compile(r"(?<=[a-z]_)(?=[a-z])")


def parts(code: str) -> list[str]:
    """Cut the text of a call where a line may end."""
    return [
        part
        for piece in AFTER.split(code)
        for part in (WITHIN.split(piece) if len(piece) > LONG else [piece])
    ]


def allow_breaks(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Add a place for a line break between the parts of each call in a table."""
    if app.builder.format != "html":
        return
    for entry in doctree.findall(nodes.entry):
        for literal in list(entry.findall(nodes.literal)):
            first, *rest = parts(literal.astext())
            literal.children = []
            literal += nodes.Text(first)
            for part in rest:
                literal += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]


def setup(app: Sphinx) -> dict[str, object]:
    """Have the tables of each page changed once its links are known."""
    app.connect("doctree-resolved", allow_breaks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
