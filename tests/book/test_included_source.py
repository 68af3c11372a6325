"""What a page shows of the library's source is still there, under that name."""

import ast
import json
import re

from book.notebooks import ROOT

INCLUDE = re.compile(r"\{literalinclude\} (\S+)\n(?:(?!```).*\n)*?:pyobject: (\S+)")


def prose(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] != "code")


def names(body):
    """List functions and classes, and what is in the classes, as Sphinx calls them."""
    for node in body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{inner}" for inner in names(node.body))


def test_every_object_that_a_page_includes_exists():
    pages = [p for p in (ROOT / "chapters").iterdir() if p.suffix in (".md", ".ipynb")]
    shown = [(p, *found) for p in pages for found in INCLUDE.findall(prose(p))]
    missing = [
        f"{page.name}: {name} in {file}"
        for page, file, name in shown
        if name not in names(ast.parse((page.parent / file).read_text("utf-8")).body)
    ]
    assert len(shown) > 20 and missing == []
