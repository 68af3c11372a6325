"""Read and write notebooks so that running one again leaves a small diff.

Execution counts are 1..n, cells keep their ids, nothing records a time, a user or a
machine, and a figure whose pixels did not change keeps its bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from d2lmulti.files import write_atomically

_NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_CELL_METADATA = ("tags", "mystnb")  # the rest is traces of editors


def read(path: Path) -> NotebookNode:
    """Read a notebook; cells without an id get one made from their source.

    Raises ValueError when the file is no notebook of format 4.
    """
    raw = json.loads(path.read_text(encoding="utf-8"))
    if raw.get("nbformat") != 4:
        raise ValueError(f"expected a notebook of format 4 in {path}")
    seen: set[str] = set()
    for cell in raw["cells"]:
        name = cell.get("id")
        if not name or name in seen:
            source = "".join(cell["source"])
            name = hashlib.sha256(source.encode()).hexdigest()[:8]
            while name in seen:
                name = hashlib.sha256(name.encode()).hexdigest()[:8]
        seen.add(name)
        cell["id"] = name
    raw["nbformat_minor"] = 5
    return nbformat.reads(json.dumps(raw), as_version=4)


def tidy_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of a stream; reduce a traceback to its last line."""
    tidy: list[NotebookNode] = []
    for output in outputs:
        last = tidy[-1] if tidy else None
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
            continue
        output = nbformat.from_dict(output)
        if output.output_type == "error":
            # The rest shows paths of this machine.
            output.traceback = [f"{output.ename}: {output.evalue}"]
        tidy.append(output)
    return tidy


def keep_equal_images(
    old: list[NotebookNode], new: list[NotebookNode]
) -> list[NotebookNode]:
    """Return `new`, where a PNG with the pixels of its predecessor keeps its bytes."""
    before = [o for o in old if "image/png" in o.get("data", {})]
    after = [o for o in new if "image/png" in o.get("data", {})]
    for one, two in zip(before, after, strict=False):
        if _same_pixels(one.data["image/png"], two.data["image/png"]):
            two.data["image/png"] = one.data["image/png"]
    return new


def _same_pixels(one: str, two: str) -> bool:
    if one.strip() == two.strip():
        return True
    from PIL import Image, ImageChops  # comes with matplotlib

    pictures = [
        Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")
        for data in (one, two)
    ]
    same_size = pictures[0].size == pictures[1].size
    return (
        same_size and ImageChops.difference(*pictures).getbbox(alpha_only=False) is None
    )


def normal(nb: NotebookNode) -> NotebookNode:
    """Take out of a notebook everything that says when, where and how it was run."""
    kept = {k: v for k, v in nb.metadata.items() if k in ("mystnb", "myst")}
    nb.metadata = nbformat.from_dict(kept | _NOTEBOOK_METADATA)
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict(
            {k: cell.metadata[k] for k in _CELL_METADATA if cell.metadata.get(k)}
        )
        for output in cell.get("outputs", []):
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return nb


def write(path: Path, nb: NotebookNode) -> bool:
    """Write a notebook in one step, if it changed; return whether it did."""
    text = nbformat.writes(nb, version=4) + "\n"
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_atomically(path, text.encode())
    return True
