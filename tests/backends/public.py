"""All public functions: those of `d2lmulti.__all__`, and what the chapters import."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import types
from pathlib import Path
from typing import Any

from backends.left_out import A_CALL_OR_INSTRUCTION, FOR_PICTURES, LEFT_OUT

import d2lmulti

CHAPTERS = Path(__file__).parents[2] / "chapters"


def find_public() -> dict[str, Any]:
    """Give every public function, class and method by name, but those left out."""
    names = {f"d2lmulti.{name}" for name in d2lmulti.__all__} | _imported()
    found: dict[str, Any] = {}
    for name in sorted(names):
        module, _, last = name.rpartition(".")
        left_out = name.startswith((*FOR_PICTURES, *A_CALL_OR_INSTRUCTION))
        if left_out or name in LEFT_OUT:
            continue
        thing = getattr(importlib.import_module(module), last)
        if isinstance(thing, dict):  # of schedules, placements, ...
            found |= {f"{last}[{key}]": value for key, value in thing.items()}
        elif callable(thing):
            short = name.removeprefix("d2lmulti.").removeprefix("d2lmulti_")
            found[last if module == "d2lmulti" else short] = thing
    found = _once(found)
    for name, thing in list(found.items()):
        if inspect.isclass(thing):
            for method, function in vars(thing).items():
                if method.startswith(("_", "on_")):  # `on_`: heard by an observer
                    continue
                if isinstance(function, types.FunctionType):
                    found[f"{name}.{method}"] = function
    found["Dataset.first"] = d2lmulti.Dataset.first
    found["Ledger.count_round"] = d2lmulti.Ledger.count_round
    found["Ledger.count_plan"] = d2lmulti.Ledger.count_plan
    found["ServerHistory.seconds_to"] = d2lmulti.ServerHistory.seconds_to
    return {name: thing for name, thing in found.items() if parameters(thing)}


def parameters(thing: Any) -> dict[str, inspect.Parameter]:
    """Give the parameters of a function or class that a caller gives by name."""
    given = inspect.signature(thing).parameters
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {n: p for n, p in given.items() if p.kind not in kinds and n != "self"}


def _once(found: dict[str, Any]) -> dict[str, Any]:
    seen: set[int] = set()
    out = {}
    for name, thing in sorted(found.items(), key=lambda item: len(item[0])):
        if id(thing) not in seen:
            seen.add(id(thing))
            out[name] = thing
    return out


def _imported() -> set[str]:
    names = set()
    for path in CHAPTERS.glob("*.ipynb"):
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            lines = [s for s in cell["source"] if not s.lstrip().startswith(("%", "!"))]
            for node in ast.walk(ast.parse("".join(lines))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    if node.module.startswith("d2lmulti"):
                        names |= {f"{node.module}.{a.name}" for a in node.names}
    return names
