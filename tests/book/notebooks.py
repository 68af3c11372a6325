"""Small notebooks for the tests of the book's tools, written by hand."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ROOT = Path(__file__).resolve().parents[2]


def text(source: str) -> NotebookNode:
    """Make a Markdown cell."""
    return new_markdown_cell(source)


def code(
    source: str,
    *outputs: NotebookNode,
    tags: tuple[str, ...] = (),
    figure: dict[str, str] | None = None,
    alt: str = "",
) -> NotebookNode:
    """Make a code cell, as if executed."""
    metadata: dict = {"tags": list(tags)} if tags else {}
    if figure or alt:
        metadata["mystnb"] = {"figure": figure or {}, "image": {"alt": alt}}
    cell = new_code_cell(source, execution_count=1, metadata=metadata)
    cell.outputs = list(outputs)
    return cell


def printed(words: str) -> NotebookNode:
    """Make the output of a print."""
    return new_output("stream", name="stdout", text=words)


def picture() -> NotebookNode:
    """Make the output of a plot: a red rectangle."""
    file = io.BytesIO()
    Image.new("RGB", (8, 4), "red").save(file, "PNG")
    png = base64.b64encode(file.getvalue()).decode()
    shown = {"image/png": png, "text/plain": "<Figure size 640x480>"}
    return new_output("display_data", data=shown)


def save(path: Path, *cells: NotebookNode) -> Path:
    """Write a notebook with stable cell ids; return its path."""
    nb = new_notebook(cells=list(cells), metadata=METADATA)
    for n, cell in enumerate(nb.cells):
        cell.id = f"cell-{n}"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, path)
    return path
