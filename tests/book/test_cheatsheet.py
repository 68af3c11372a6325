"""Every call on the cheat sheet exists, with its arguments, in the pinned versions."""

from __future__ import annotations

import ast
import datetime
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHEET = Path(__file__).resolve().parents[2] / "chapters" / "cheatsheet.md"
SHELL = ("torchrun ", "python ", "horovodrun ")
# Tool -> the modules that its rows name, as they name them.
MODULES = {
    "PyTorch": {"torch": "torch"},
    "Paddle": {"paddle": "paddle"},
    "Horovod": {"torch": "torch", "hvd": "horovod.torch"},
    "MXNet": {"mx": "mxnet"},
    "TensorFlow": {"tf": "tensorflow", "keras": "keras"},
    "Keras": {"tf": "tensorflow", "keras": "keras"},
}


def tools() -> dict[str, dict[str, str]]:
    """Return {tool: {step: how}} as the page has them."""
    found = {}
    for block in SHEET.read_text("utf-8").split(":::{tab-item} ")[1:]:
        rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", block, re.MULTILINE)
        found[block.partition("\n")[0]] = dict(rows)
    return found


def code_of(tool: str) -> list[str]:
    """Return the pieces of Python of a tool's rows; a word alone is no code."""
    words = re.sub(r"\{\w+\}`\w+`", "", "\n".join(tools()[tool].values()))
    pieces = re.findall(r"`([^`]+)`", words)
    return [p for p in pieces if ("(" in p or "=" in p) and not p.startswith(SHELL)]


class Calls(ast.NodeVisitor):
    """Look up what is called, and bind the arguments to its signature.

    Names stand for modules, or for the class of which a call made an object. What else
    a row names (a model, a batch) is unknown, and its methods are not looked up.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.bound = names, 0

    def value(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value)
            return None if owner is None else getattr(owner, node.attr)
        return None

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.names[alias.asname or alias.name] = importlib.import_module(alias.name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        made = self.value(node.value.func) if isinstance(node.value, ast.Call) else None
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.names[target.id] = made if inspect.isclass(made) else None

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.value(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self.value(node.func)
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):  # unknown, or written in C
            return
        owner = self.value(getattr(node.func, "value", node))
        is_method = inspect.isclass(owner) and inspect.isfunction(called)
        args = [None] * (len(node.args) + is_method)
        signature.bind(*args, **{word.arg: None for word in node.keywords})
        self.bound += 1


def check(tool: str) -> int:
    """Look up all calls of a tool; return how many had a signature."""
    names = {k: importlib.import_module(v) for k, v in MODULES[tool].items()}
    calls = Calls(names | {"os": os, "datetime": datetime})
    for piece in code_of(tool):
        calls.visit(ast.parse(piece.removesuffix(":") + ": ..." * piece.endswith(":")))
    return calls.bound


def test_all_tools_have_their_steps_in_one_order() -> None:
    found = tools()
    assert len(found) == 8 and len(found["PyTorch"]) == 19
    for rows in found.values():
        assert list(rows) == [step for step in found["PyTorch"] if step in rows]


@pytest.mark.parametrize("tool", MODULES)
def test_what_is_called_exists(tool: str, need: Any) -> None:
    for module in MODULES[tool].values():
        need(module.partition(".")[0])
    command = f"from book import test_cheatsheet as t; print(t.check({tool!r}))"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | quiet | path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    assert int(done.stdout.split()[-1]) >= 8
