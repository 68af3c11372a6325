"""Show adjacent code cells of different frameworks as one set of synced tabs.

A cell joins a tab when its first line is `%%tab KEY`. A run of such cells, with nothing
between them, becomes one tab set; two cells with the same key stand one below the other
in the same tab, each above its own output. All tab sets of the book switch together,
and the choice outlives the page (sphinx-design keeps it in the browser). A tab that is
missing beside two others is a warning, an error with `-W`; an unknown one ends the
build. One tab alone shows what only its framework has.
"""

from __future__ import annotations

from itertools import groupby

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx_design.shared import create_component

from d2lmulti_book.notebook import TABS, split_cell

LOGGER = logging.getLogger(__name__)


def is_code_cell(node: nodes.Node) -> bool:
    """Tell whether a node is a code cell as MyST-NB makes them."""
    return isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"


def tab_key(cell: nodes.container) -> str | None:
    """Return the key of a tab cell, and take the line `%%tab KEY` out of its source."""
    source = next(iter(cell.findall(nodes.literal_block)), None)
    text = source.astext() if source else ""
    key = split_cell(text)[0].tab
    if key is not None:
        source.rawsource = text.lstrip().partition("\n")[2]
        source.children = []
        source += nodes.Text(source.rawsource)
    return key


def tab_set(run: list[tuple[str, nodes.container]]) -> nodes.container:
    """Build the tab set of a run of (key, cell), its tabs in the order of `TABS`."""
    first = run[0][1]
    cells: dict[str, list[nodes.container]] = {}
    for key, cell in run:
        cells.setdefault(key, []).append(cell)
    for key in [k for k in TABS if k not in cells and len(cells) > 1]:
        LOGGER.warning(
            "the code tab %r is missing beside %s; write a cell that begins with "
            "'%%%%tab %s'",
            key, ", ".join(cells), key, location=first, type="code_tabs", subtype="key",
        )  # fmt: skip
    tabs = create_component("tab-set", classes=["sd-tab-set", "code-tabs"])
    tabs.source, tabs.line = first.source, first.line
    for key in sorted(cells, key=[*TABS].index):
        sync = {"sync_group": "framework", "sync_id": key}
        label = nodes.rubric("", TABS[key], classes=["sd-tab-label"], **sync)
        content = create_component(
            "tab-content", classes=["sd-tab-content"], children=cells[key]
        )
        item = create_component(
            "tab-item", classes=["sd-tab-item"], children=[label, content]
        )
        item.source, item.line = first.source, first.line
        tabs += item
    return tabs


class CodeTabs(SphinxTransform):
    """Replace every run of adjacent tab cells by one tab set."""

    # After translation (20) and gated solutions (10); sphinx-design turns the tab sets
    # into HTML in a post-transform, so other builders show the tabs one by one.
    default_priority = 400

    def apply(self, **kwargs: object) -> None:
        cells = list(self.document.findall(is_code_cell))
        for parent in {id(cell.parent): cell.parent for cell in cells}.values():
            keyed = [
                (tab_key(child) if is_code_cell(child) else None, child)
                for child in parent.children
            ]
            children: list[nodes.Node] = []
            for in_tabs, group in groupby(keyed, lambda pair: pair[0] is not None):
                run = list(group)
                if in_tabs:
                    children.append(tab_set(run))
                else:
                    children += [child for _, child in run]
            parent.children = []
            parent.extend(children)


def setup(app: Sphinx) -> dict[str, object]:
    """Register the transform."""
    app.setup_extension("sphinx_design")
    app.add_transform(CodeTabs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
