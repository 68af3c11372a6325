"""The core: the files that one training step goes through, named in pyproject.toml.

`CoreContract` is the rule for import-linter that they import nothing else.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import tomllib
from importlinter import Contract, ContractCheck, output

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_FILES, MAX_LINES = 10, 2_020  # more goes to a file that a step does not need
BESIDE = {"errors", "checks", "protocol"}  # last parts of names: open to the core too


def core_files() -> list[str]:
    """Return the files of the core, in reading order."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files: list[str] = settings["tool"]["d2lmulti"]["core"]
    return files


def core_lines() -> int:
    """Count the lines of the core, blank ones too."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in core_files()]
    return sum(text.count("\n") for text in texts)


def strange_imports(graph: Any, core: set[str]) -> list[tuple[str, str]]:
    """Return (importer, imported) where the core imports what it must not."""
    return [
        (module, other)
        for module in sorted(core)
        for other in sorted(graph.find_modules_directly_imported_by(module))
        if other not in core and not _open_to_the_core(other)
    ]


def _open_to_the_core(module: str) -> bool:
    package, _, last = module.partition(".")[0], *module.rpartition(".")[1:]
    if package == "d2lmulti":
        return last in BESIDE
    return package == "numpy" or package in sys.stdlib_module_names


class CoreContract(Contract):  # type: ignore[misc]
    """The files of the core import each other, errors, checks, `protocol`, NumPy."""

    def check(self, graph: Any, verbose: bool) -> ContractCheck:
        """Look at every import of the core."""
        names = [
            name.removesuffix(".py").removesuffix("/__init__") for name in core_files()
        ]
        core = {name.replace("/", ".") for name in names}
        strange = strange_imports(graph, core)
        return ContractCheck(kept=not strange, metadata={"strange": strange})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name the imports that break it."""
        for importer, imported in check.metadata["strange"]:
            output.print_error(f"{importer} imports {imported}")
