"""A small book, built once with the real settings, for the tests that look at pages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from book.notebooks import ROOT, code, picture, printed, save, text

TABS = ("torch", "mxnet", "paddle")
NO_BROWSER = importlib.util.find_spec("playwright") is None or not (
    os.environ.get("CHROMIUM")
    or any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
)

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
    text("# Moving gradients\n\nAfter {numref}`fig-bytes`."),
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


@pytest.fixture(autouse=True)
def browser(request: pytest.FixtureRequest) -> None:
    """Skip what drives a browser where there is none."""
    if NO_BROWSER and request.node.get_closest_marker("browser"):
        pytest.skip("needs playwright and a Chromium (Debian: apt install chromium)")


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
