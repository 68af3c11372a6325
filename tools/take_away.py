"""Write the chapters as notebooks to take away: `make notebooks`.

One clean notebook per framework and chapter, and the wheel that its first code cell
installs: from the notebook's folder or the one above, or, where BOOK_URL is set, from
the hosted book. Tabs and magics are resolved, outputs are left out, links are absolute.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from itertools import groupby
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "_ext")]

from notebook_rules import METADATA, asks_for_no_framework  # noqa: E402
from plain_markdown import Book, plain, read_book  # noqa: E402

import d2lmulti  # noqa: E402
from d2lmulti_book.notebook import TABS, split_cell  # noqa: E402

OUT = ROOT / "_build" / "notebooks"
WHEEL = f"d2lmulti-{d2lmulti.__version__}-py3-none-any.whl"
LOAD = "%load_ext d2lmulti_book.notebook"
# The folders that chapters read, as they name them: the wheel holds them all.
CARRIED = ("measured", "../examples")
TENSORFLOW = (
    '"tensorflow-cpu==2.17.1" if sys.version_info < (3, 13) else "tensorflow-cpu"'
)

ABOUT = """\
# {title}

This notebook is a chapter of *Multi-GPU Training from Scratch*, version {version}, \
{framework}. {home}Text and figures: CC BY 4.0, the d2lmulti authors. Code: MIT.

Run its cells from top to bottom. The first one installs what the others need{wheel}. \
No GPU is needed: without one, the devices are simulated. Of the tabs that the text \
mentions, this notebook has one; cells that the book folds are collapsed in Jupyter.
"""

FITS = """\
if sys.version_info[:2] != (3, 11) or sys.platform != "linux":
    raise RuntimeError(
        "MXNet needs Python 3.11 on Linux, because its last release needs NumPy "
        f"below 1.24; this is Python {{sys.version.split()[0]}} on {{sys.platform}}")
"""

INSTALL = """\
needed = {needed}
if not all(importlib.util.find_spec(name) for name in needed):
    wheels = [*Path().glob("{wheel}"),
              *Path("..").glob("{wheel}")]
    {source}
    command = [sys.executable, "-m", "pip", "install", "--quiet"]
    subprocess.run([*command, f"d2lmulti{extra} @ {{source}}"], check=True)
    importlib.invalidate_caches()
"""

BESIDE = """\
if not importlib.util.find_spec("tensorflow"):
    package = {package}
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package],
                   check=True)
    importlib.invalidate_caches()
"""

BESIDE_ONLY = """\
if not wheels:
        raise FileNotFoundError(
            "expected {wheel} beside this notebook")
    source = wheels[0].resolve().as_uri()"""

HOSTED = """\
source = (wheels[0].resolve().as_uri() if wheels else
              "{url}/notebooks/{wheel}")"""

FILES = """\
import d2lmulti_book
files = Path(d2lmulti_book.__file__).parent / "files"
for name in {names}:  # what this chapter reads
    if not Path(name).exists():
        shutil.copytree(files / name, name)
"""


def take_away(nb: Any, page: str, framework: str, book: Book) -> Any:
    """Return the notebook of one chapter for one framework."""
    cells = []
    for in_tabs, group in groupby(nb.cells, lambda cell: tab_of(cell) is not None):
        run = list(group)
        kept = [cell for cell in run if tab_of(cell) in (None, framework)]
        for cell in kept:
            if cell.cell_type == "markdown":
                words = plain(cell.source, page, book)
                cells.append(new_markdown_cell(words, id=cell.id))
            else:
                cells += code(cell, page, nb, book)
        if in_tabs and not kept:
            words = f"*Here the book has a cell for {TABS[tab_of(run[0])]} alone.*"
            cells.append(new_markdown_cell(words, id=run[0].id))
    cells[0].source = re.sub(r"\A# .*\n*", "", cells[0].source)
    cells = [c for c in cells if c.source]
    head = [
        new_markdown_cell(about(nb, page, framework, book), id="about"),
        new_code_cell(first_cell(nb, framework, book.url), id="set-up"),
    ]
    taken = new_notebook(cells=head + cells, metadata=METADATA)
    nbformat.validate(taken)
    return taken


def tab_of(cell: Any) -> str | None:
    """Return the framework whose tab a cell belongs to, if it belongs to any."""
    return split_cell(cell.source)[0].tab if cell.cell_type == "code" else None


def code(cell: Any, page: str, nb: Any, book: Book) -> list[Any]:
    """Return a cell of code without magics, and the caption of its figure."""
    asked, source = split_cell(cell.source.replace(LOAD, "").strip())
    source = source.replace("../examples/", "examples/")
    if asked.needs and not needs_throughout(nb, asked.needs):
        source = guarded(
            source,
            "from d2lmulti_book.notebook import is_installed",
            f'is_installed("{asked.needs}")',
            f"This cell needs {asked.needs}.",
        )
    if asked.gpu:
        source = guarded(
            source,
            "import d2lmulti",
            f"d2lmulti.get_backend().gpu_count() >= {asked.gpu}",
            f"This cell needs {asked.gpu} GPU{'s' * (asked.gpu != '1')}.",
        )
    new = new_code_cell(source, id=cell.id)
    if "hide-input" in cell.metadata.get("tags", []):
        new.metadata["jupyter"] = {"source_hidden": True}
    figure = cell.metadata.get("mystnb", {}).get("figure")
    if not figure:
        return [new]
    label = book.labels[figure.get("name", cell.id)]
    words = f"*{label.words}.* {plain(figure.get('caption', ''), page, book)}"
    return [new, new_markdown_cell(words, id=f"caption-{cell.id}"[:64])]


def guarded(source: str, imports: str, condition: str, otherwise: str) -> str:
    """Put a cell under an `if`; raises ValueError where that would change it."""
    inside = textwrap.indent(source, "    ")
    whole = f'{imports}\n\nif {condition}:\n{inside}\nelse:\n    print("{otherwise}")'
    tree = ast.parse(source)
    same = ast.dump(ast.Module(ast.parse(whole).body[-1].body, [])) == ast.dump(tree)
    last = tree.body[-1]
    shows = isinstance(last, ast.Expr) and not isinstance(last.value, ast.Call)
    if not same or shows:
        raise ValueError(f"cannot stand under an `if`:\n{source}")
    return whole


def needs_throughout(nb: Any, module: str) -> bool:
    """Tell whether more than half of a chapter's code needs a module."""
    asked = [split_cell(c.source)[0].needs for c in nb.cells if c.cell_type == "code"]
    return 2 * asked.count(module) > len(asked)


def about(nb: Any, page: str, framework: str, book: Book) -> str:
    """Return the first cell: the title, and where the notebook comes from."""
    home = f"Its page: {book.url}/chapters/{page}.html. " if book.url else ""
    wheel = "" if book.url else f"; it expects `{WHEEL}` beside the notebook"
    return ABOUT.format(
        title=book.titles[page],
        version=d2lmulti.__version__,
        framework="with any framework"
        if asks_for_no_framework(nb)
        else f"with {TABS[framework]}",
        home=home,
        wheel=wheel,
    )


def first_cell(nb: Any, framework: str, url: str) -> str:
    """Return the code that installs what a chapter needs, and chooses the framework."""
    sources = "\n".join(c.source for c in nb.cells if c.cell_type == "code")
    carried = {name: f"{name}/" in sources for name in CARRIED}
    names = [name.removeprefix("../") for name in CARRIED if carried[name]]
    parts, modules = [], ["importlib.util", "os", *["shutil"] * bool(names)]
    parts.append(
        "\n".join(f"import {name}" for name in [*modules, "subprocess", "sys"])
        + "\nfrom pathlib import Path\n"
    )
    extra: str | None = framework
    if asks_for_no_framework(nb):
        extra = "torch" if re.search(r"\btorch\b", sources) else None
    elif framework == "mxnet":
        parts.append(FITS.format())
    source = (HOSTED if url else BESIDE_ONLY).format(wheel=WHEEL, url=url)
    needed = json.dumps(["d2lmulti_book", *filter(None, [extra])])
    extra = f"[{extra}]" if extra else ""
    parts.append(INSTALL.format(wheel=WHEEL, source=source, needed=needed, extra=extra))
    if needs_throughout(nb, "tensorflow"):
        parts.append(BESIDE.format(package=TENSORFLOW))
    if names:
        parts.append(FILES.format(names=json.dumps(names)))
    if not asks_for_no_framework(nb):
        parts.append(f'os.environ["D2LMULTI_BACKEND"] = "{framework}"')
    parts.append("from d2lmulti_book.notebook import prepare\nprepare()")
    return "\n".join(parts)


def build_wheel(folder: Path) -> None:
    """Build the wheel into a folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Write the notebooks and the wheel."""
    book = read_book(ROOT / "chapters", os.environ.get("BOOK_URL", ""))
    chapters = sorted((ROOT / "chapters").glob("*.ipynb"))
    shutil.rmtree(OUT, ignore_errors=True)
    for path in chapters:
        nb = nbformat.read(path, as_version=4)
        for framework in TABS:
            taken = take_away(nb, path.stem, framework, book)
            target = OUT / framework / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(taken, target)
    build_wheel(OUT)
    print(f"{len(chapters)} chapters for {', '.join(TABS.values())}, and {WHEEL}")
    print(f"are in {OUT}")


if __name__ == "__main__":
    main()
