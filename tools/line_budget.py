"""Keep files short: one idea a file, and a chapter that can be read in one sitting.

    python tools/line_budget.py [FILE ...]

Looks at all modules and chapters, and at the core as a whole, unless files are named. A
module has 450 lines and 8 lines of docstring at most; the rules of chapters are in
notebook_rules.py. Prints a line for each file over its budget and ends with 1.
"""

from __future__ import annotations

import ast
import pathlib
import sys

import nbformat
from core import core_lines, core_listing, core_rules
from notebook_rules import output_rules, source_rules

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = (
    "d2lmulti",
    "d2lmulti_cluster",
    "d2lmulti_book",
    "benchmarks",
    "tests",
    "tools",
    "chapters",
    "_ext",
    "examples",
)
HIDDEN = {".ipynb_checkpoints", "__pycache__"}
MODULE_LINES = 450
DOCSTRING_LINES = 8


def module_rules(source: str) -> list[str]:
    """Return what is too long in the source of a module."""
    found = []
    lines = source.count("\n")
    if lines > MODULE_LINES:
        found.append(
            f"{lines} lines, at most {MODULE_LINES}: move one of its ideas to a file "
            "of its own"
        )
    docstring = (ast.get_docstring(ast.parse(source)) or "").count("\n") + 1
    if docstring > DOCSTRING_LINES:
        found.append(
            f"{docstring} lines of module docstring, at most {DOCSTRING_LINES}: name "
            "the idea and leave the rest to the functions"
        )
    return found


def over_budget(path: pathlib.Path) -> list[str]:
    """Return the complaints about one file; none for a kind of file without rules."""
    if path.suffix == ".py":
        return module_rules(path.read_text(encoding="utf-8"))
    if path.suffix == ".ipynb":
        notebook = nbformat.read(path, as_version=4)
        return [*source_rules(notebook), *output_rules(notebook)]
    return []


def files_of_the_project() -> list[pathlib.Path]:
    """Return every module and chapter, in order."""
    found = [path for name in FOLDERS for path in (ROOT / name).rglob("*.*")]
    kept = [path for path in found if not HIDDEN & set(path.parts)]
    return sorted(path for path in kept if path.suffix in (".py", ".ipynb"))


def main(arguments: list[str]) -> int:
    """Check the named files, or all; return 1 when one is over its budget."""
    paths = [pathlib.Path(name) for name in arguments] or files_of_the_project()
    found = [f"{path}: {text}" for path in paths for text in over_budget(path)]
    if not arguments:
        found += core_rules(core_lines())
        print(core_listing(), "in the core", sep=" ")
    print("\n".join(found) or f"{len(paths)} files within budget")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
