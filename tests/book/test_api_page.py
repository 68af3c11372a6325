"""The reference holds every public name, whatever framework is missing."""

import ast
import doctest
import pkgutil
import re
import shutil
import subprocess
import sys
from types import ModuleType

import nbformat
import pytest
from book.conftest import with_checkout
from book.notebooks import ROOT
from sphinx.util.inventory import InventoryFile

import d2lmulti
from d2lmulti.backends.protocol import Backend

pytestmark = pytest.mark.xdist_group("api_page")  # built once
OVERVIEW = (ROOT / "chapters" / "api.md").read_text("utf-8")
PAGES = {
    path.stem: path.read_text("utf-8")
    for path in sorted((ROOT / "chapters" / "reference").glob("*.md"))
}
# Sphinx cannot import the first where a framework is missing; pictures are no library.
NOT_LISTED = (
    "d2lmulti.processes.mxnet_kvstore",
    "d2lmulti_book.figures",
    "d2lmulti_book.gym",
)
CONFIG = """
import sys
for framework in ("torch", "mxnet", "paddle"):
    sys.modules[framework] = None  # as if it were not installed
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
autosummary_generate = False
root_doc = "api"
default_role = "code"
suppress_warnings = ["ref.doc"]  # a book without its chapters
"""


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api_page")
    (folder / "conf.py").write_text(CONFIG)
    toc = "\n```{toctree}\n:glob:\nreference/*\n```\n"
    (folder / "api.md").write_text(OVERVIEW + toc)
    shutil.copytree(ROOT / "chapters" / "reference", folder / "reference")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ".", "out"],
        cwd=folder,
        env=with_checkout(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with open(folder / "out" / "objects.inv", "rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, name: name)
    return {
        name for kind, names in inventory.items() if kind[:3] == "py:" for name in names
    }


def test_every_public_name_is_there(documented):
    assert {f"d2lmulti.{name}" for name in d2lmulti.__all__} - documented == set()


def test_every_verb_of_a_backend_is_there(documented):
    verbs = {name for name in vars(Backend) if not name.startswith("_")}
    assert len(verbs) > 20
    prefix = "d2lmulti.backends.protocol.Backend."
    assert {prefix + verb for verb in verbs} - documented == set()


def imported_by_chapters():
    """Find what chapters import from the library, and name each thing in full."""
    for path in sorted((ROOT / "chapters").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code":
                continue
            magic = re.compile(r"^ *[%!].*$", re.MULTILINE)
            for node in ast.walk(ast.parse(magic.sub("", cell.source))):
                module = getattr(node, "module", None) or ""
                if isinstance(node, ast.ImportFrom) and module.startswith("d2lmulti"):
                    yield from ((path.stem, module, alias.name) for alias in node.names)


def test_every_name_that_a_chapter_imports_is_there(documented):
    there = {id(resolve(name)) for name in documented}
    missing = [
        (chapter, f"{module}.{name}")
        for chapter, module, name in imported_by_chapters()
        if not module.startswith(NOT_LISTED)
        and not isinstance(found := resolve(f"{module}.{name}"), ModuleType)
        and id(found) not in there
    ]
    assert missing == []


def resolve(name):
    """Give the object that a dotted name stands for, or None for an attribute."""
    try:
        return pkgutil.resolve_name(name)
    except AttributeError:
        return None


def chapters_named(text):
    return set(re.findall(r"\{doc\}`(?:[^`<]+<|\.\./)?(\w+)>?`", text))


def test_the_overview_has_every_page_with_the_chapters_that_explain_it():
    rows = dict(re.findall(r"^\| \{doc\}`reference/(\w+)` (\|.*)$", OVERVIEW, re.M))
    assert rows.keys() == PAGES.keys()
    for name, text in PAGES.items():
        explained = re.search(r"^\*\*Explained in\*\* .*?\.$", text, re.M | re.S)
        assert chapters_named(explained[0]) == chapters_named(rows[name]) != set(), name


@pytest.mark.parametrize("name", PAGES)
def test_its_example_prints_what_it_shows(name):
    text = PAGES[name].replace("\n```", "\n\n```")  # where an output ends
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    runner.run(parser.get_doctest(text, {}, name, f"{name}.md", 0))
    assert runner.failures == 0
