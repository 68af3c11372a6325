"""A small book, built once with the real settings, for the tests that look at pages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book.notebooks import ROOT, code, picture, printed, save, text
from bs4 import BeautifulSoup

TABS = ("torch", "mxnet", "paddle")

ONE = [
    text(
        "# Data parallelism\n\n"
        "A {term}`mini-batch` of $k b$ examples {cite}`goyal2017accurate`, and\n\n"
        "$$\n\\mathbf{w} - \\frac{\\eta}{k b} \\sum_{i=1}^{k} \\mathbf{g}_i\n$$\n\n"
        "{numref}`fig-bytes` shows it; {doc}`two` goes on.\n\n"
        "| " + " | ".join(f"a wide column {i}" for i in range(9)) + " |\n"
        "|" + "---|" * 9 + "\n"
        "| " + " | ".join(f"`tool.value_{i}`" for i in range(9)) + " |\n"
    ),
    code("%load_ext d2lmulti_book.notebook"),
    # Not in the order of the page, and two cells of one framework.
    code("%%tab mxnet\nimport mxnet", printed("printed by mxnet\n")),
    code("%%tab torch\nimport torch", printed("printed by torch\n")),
    code("%%tab torch\nmore = 'torch'", printed("more of torch\n")),
    code("%%tab paddle\nimport paddle", printed("printed by paddle\n")),
    text("Some text between two sets."),
    *(code(f"%%tab {key}\nfirst = 1", printed(f"second {key}\n")) for key in TABS),
    code("print('a long line ' * 20)", printed("a long line " * 20 + "\n")),
    code(
        "draw()",
        picture(),
        figure={"name": "fig-bytes", "caption": "Bytes moved.", "align": "center"},
        alt="A red rectangle.",
    ),
    text(
        "## Exercises\n\n```{exercise} Larger\n:label: ex-one\nWhat of $k b$?\n```\n\n"
        "```{solution-start} ex-one\n:class: dropdown\n```\n\nIt works."
    ),
    *(code(f"%%tab {key}\nsolve()", printed(f"solved {key}\n")) for key in TABS),
    text("```{solution-end}\n```"),
]

TWO = [
    text("# Moving gradients\n\nAfter {numref}`fig-bytes` {cite}`li2014scaling`."),
    text("```{schedule-slider}\n:name: a-slider\n\nChoose a schedule.\n```"),
    text("```{step-calculator}\n:name: a-calculator\n\nChoose a layout.\n```"),
    text("```{one-step}\n:name: a-step\n:first: ring 4 19\n\nPlay it.\n```"),
    text("```{which-run}\n:name: a-game\n:ways: star buckets\n\nGuess.\n```"),
    code("%load_ext d2lmulti_book.notebook"),
    *(code(f"%%tab {k}\nx = 1", printed(f"{k} again\n")) for k in TABS),
]

TOC = """\
format: jb-book
root: chapters/index
parts:
  - caption: Part II, Three ways to split the work
    numbered: 1
    chapters:
      - file: chapters/one
      - file: chapters/two
  - caption: Back matter
    chapters:
      - file: chapters/glossary
      - file: chapters/references
"""


@pytest.fixture(scope="module")
def chromium():
    """Start the Chromium of a file's tests; skip them where there is none."""
    pytest.importorskip("playwright")
    import check_pages

    try:
        path = check_pages.chromium()
    except SystemExit as advice:
        pytest.skip(str(advice))
    with check_pages.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=check_pages.FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open pages. An error, a request elsewhere, or a page too wide fails the test."""
    wrong, opened = [], []

    def open_page(path: Path, width: int = 1200, place: str = "", **settings):
        page = chromium.new_page(viewport={"width": width, "height": 800}, **settings)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.extend([m.text] * is_error(m)))
        page.on("request", lambda r: wrong.extend([r.url] * is_foreign(r.url)))
        page.goto(path.as_uri() + place)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert not re.search(r"NaN|undefined|Infinity", page.inner_text("main"))
        page.close()
    assert not wrong


def is_foreign(address: str) -> bool:
    """Tell whether an address is neither a file nor within a page."""
    return not address.startswith(("file:", "data:", "blob:"))


def is_error(message) -> bool:
    """Tell whether a page reports an error. Opened as a file, it gets no fonts."""
    about_fonts = "font" in message.text or message.text.endswith("net::ERR_FAILED")
    return message.type == "error" and not about_fonts


def page(book: Path, name: str) -> BeautifulSoup:
    """Return a chapter of a built book."""
    html = (book / "chapters" / f"{name}.html").read_text(encoding="utf-8")
    return BeautifulSoup(html, "html.parser")


def with_checkout() -> dict[str, str]:
    """Return the environment for a child that imports this checkout's d2lmulti."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one of pytest's workers run all tests of the small book: it is built once."""
    for item in items:
        if "small_book" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("small_book"))


@pytest.fixture(scope="session")
def small_book(tmp_path_factory) -> Path:
    """Build a book of two chapters with the real settings; return its HTML folder."""
    return build_book(tmp_path_factory.mktemp("small_book"))


def build_book(folder: Path) -> Path:
    """Write the small book into a folder and build it."""
    chapters = folder / "chapters"
    chapters.mkdir()
    for name in ("_ext", "_extra", "_static"):
        shutil.copytree(ROOT / name, folder / name)
    (chapters / "measured").mkdir()
    runs = "chapters/measured/planted_runs.json"
    for name in ("_config.yml", "chapters/references.bib", runs):
        shutil.copy(ROOT / name, folder / name)
    for name in ("glossary.md", "references.md"):  # the chapters they name are not here
        prose = (ROOT / "chapters" / name).read_text("utf-8")
        (chapters / name).write_text(re.sub(r"\{doc\}(`[^`<]+).*?`", r"\1`", prose))
    (chapters / "index.md").write_text("# A small book\n\n## How to cite\n")
    (folder / "_toc.yml").write_text(TOC)
    save(chapters / "one.ipynb", *ONE)
    save(chapters / "two.ipynb", *TWO)
    command = "from jupyter_book.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "build", ".", "-n", "-W", "--keep-going"],
        cwd=folder,
        env=with_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "_build" / "html"
