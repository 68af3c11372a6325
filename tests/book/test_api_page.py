"""The page of the library holds every public name, whatever framework is missing."""

import ast
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
# Sphinx cannot import these where a framework is missing.
NEEDS_A_FRAMEWORK = ("d2lmulti.processes.mxnet_kvstore",)
CONFIG = """
import sys
for framework in ("torch", "mxnet", "paddle"):
    sys.modules[framework] = None  # as if it were not installed
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
autosummary_generate = False
root_doc = "api"
default_role = "code"
"""


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api_page")
    (folder / "conf.py").write_text(CONFIG)
    shutil.copy(ROOT / "chapters" / "api.md", folder)
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
        if module not in NEEDS_A_FRAMEWORK
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
