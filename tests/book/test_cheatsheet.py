"""Every call on the cheat sheet exists, with its arguments, in the pinned versions."""

from __future__ import annotations

import ast
import datetime
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHEET = Path(__file__).resolve().parents[2] / "chapters" / "cheatsheet.md"
SHELL = ("torchrun ", "python ", "horovodrun ", "accelerate ", "deepspeed ")
# Column -> what its names stand for, as `pkgutil.resolve_name` finds it.
NAMES = {
    "PyTorch": {
        "torch": "torch",
        "dist": "torch.distributed",
        "DDP": "torch.nn.parallel:DistributedDataParallel",
        "DistributedSampler": "torch.utils.data:DistributedSampler",
        "pp": "torch.distributed.pipelining",
        "tp": "torch.distributed.tensor.parallel",
    },
    "Paddle": {
        "paddle": "paddle",
        "dist": "paddle.distributed",
        "fleet": "paddle.distributed.fleet",
    },
    "TensorFlow, Keras": {"tf": "tensorflow", "keras": "keras"},
    "Accelerate": {
        "Accelerator": "accelerate:Accelerator",
        "ParallelismConfig": "accelerate:ParallelismConfig",
        "FullyShardedDataParallelPlugin": "accelerate:FullyShardedDataParallelPlugin",
    },
    "DeepSpeed": {"deepspeed": "deepspeed", "dist": "deepspeed.comm"},
    "JAX": {
        "jax": "jax",
        "jnp": "jax.numpy",
        "optax": "optax",
        "ocp": "orbax.checkpoint",
        "NamedSharding": "jax.sharding:NamedSharding",
        "P": "jax.sharding:PartitionSpec",
    },
    "Horovod": {"torch": "torch", "hvd": "horovod.torch"},
    "MXNet": {"mx": "mxnet"},
}


def tables() -> list[dict[str, dict[str, str]]]:
    """Return {tool: {step: how}} of each table of the page, and check its shape."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", SHEET.read_text("utf-8"), re.MULTILINE):
        head, _, *rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
        assert all(len(row) == len(head) for row in rows), head
        steps = [row[0].strip("*") for row in rows]
        columns = list(zip(*rows, strict=True))[1:]
        ways = [dict(zip(steps, column, strict=True)) for column in columns]
        found.append(dict(zip(head[1:], ways, strict=True)))
    return found


def tools() -> dict[str, dict[str, str]]:
    today, libraries, older = tables()
    return today | libraries | older


def notes_of(tool: str) -> str:
    """Return the notes below a tool's table."""
    sections = SHEET.read_text("utf-8").split("\n## ")
    (notes,) = (
        s.partition("Notes on the rows:")[2] for s in sections if f"| {tool} |" in s
    )
    return notes


def code_of(tool: str) -> list[str]:
    """Return the pieces of Python of a tool's rows and notes; a word is no code."""
    words = "\n".join([*tools()[tool].values(), notes_of(tool)])
    pieces = re.findall(r"`([^`]+)`", re.sub(r"\{\w+\}`\w+`", "", words))
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
    for optional in (
        "torch.distributed.fsdp",
        "torch.distributed.optim",
        "torch.utils.checkpoint",
    ):
        if tool == "PyTorch":
            importlib.import_module(optional)
    names = {k: pkgutil.resolve_name(v) for k, v in NAMES[tool].items()}
    calls = Calls(names | {"os": os, "datetime": datetime})
    for piece in code_of(tool):
        calls.visit(ast.parse(piece.removesuffix(":") + ": ..." * piece.endswith(":")))
    return calls.bound


def test_the_tables_have_their_steps_in_one_order() -> None:
    today, libraries, older = tables()
    assert len(today) == len(libraries) == 3 and len(older) == 4
    steps = list(today["PyTorch"])
    assert len(steps) >= 19
    assert list(libraries["JAX"]) == steps
    assert list(older["Horovod"]) == [s for s in steps if s in older["Horovod"]]


@pytest.mark.parametrize("tool", NAMES)
def test_what_is_called_exists(tool: str, need: Any) -> None:
    for name in NAMES[tool].values():
        need(re.split("[.:]", name)[0])
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
    assert int(done.stdout.split()[-1]) >= 6
