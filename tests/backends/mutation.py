"""Mutants of a function: copies with one small change, as a slip would make it.

Changed are operators, comparisons, constants, arguments, indices, and bounds, and
statements are left out. Every loop counts its turns, so a mutant that runs forever
raises an error.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

TURNS = 20_000  # of all loops; the right functions need less

OTHER = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.Lt],
}


class RanForever(Exception):
    """The loops of a mutant took too many turns."""


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may be replaced with."""
    new = copy.deepcopy
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        for op in OTHER.get(type(node.op), []):
            changed = new(node)
            changed.op = op()
            yield changed
    if isinstance(node, ast.BinOp):  # an operand is forgotten
        yield new(node.left)
    if isinstance(node, ast.Compare):
        for op in OTHER.get(type(node.ops[0]), []):
            changed = new(node)
            changed.ops = [op()]
            yield changed
    if isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield new(node.operand)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value / 2 if node.value % 2 else node.value - 1)
    if isinstance(node, ast.Call) and len(node.args) > 1:
        changed = new(node)
        changed.args[:2] = changed.args[1::-1]
        yield changed
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
        changed = new(node)
        changed.args = [ast.Constant(1), *changed.args][:2]
        yield changed
    if isinstance(node, ast.Slice):
        for end in ("lower", "upper"):
            if getattr(node, end) is not None:
                changed = new(node)
                setattr(changed, end, None)
                yield changed
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
        changed = new(node)
        changed.slice = ast.Constant(0)
        yield changed
    if isinstance(node, (ast.Expr, ast.AugAssign, ast.If)):  # the statement is missing
        yield ast.Pass()


def replaced(tree: ast.Module, number: int, new: ast.AST) -> ast.Module:
    """Return a copy of a tree whose node of this number, as walked, is another."""
    tree = copy.deepcopy(tree)
    old = [*ast.walk(tree)][number]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return Replace().visit(tree)


class Limit(ast.NodeTransformer):
    """Let every loop count its turns."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, (ast.For, ast.While)):
            node.body.insert(0, ast.parse("count_turn()").body[0])
        return node


def mutants(f: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the mutants of a function, by the lines that differ."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(f)))
    before = ast.unparse(tree).splitlines()
    found = {}
    for number, node in enumerate(ast.walk(tree)):
        for change in changes(node):
            changed = ast.fix_missing_locations(replaced(tree, number, change))
            after = ast.unparse(changed).splitlines()
            lines = zip(before, after, strict=False)
            for line, (old, new) in enumerate(lines):
                if old != new:
                    words = f"{f.__name__} {line}: {old.strip()} -> {new.strip()}"
                    found[words] = changed
                    break
    return {words: compiled(changed, f) for words, changed in found.items()}


def compiled(tree: ast.Module, f: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a changed tree, with what f sees of its module."""
    turns = iter(range(TURNS))

    def count_turn() -> None:
        if next(turns, None) is None:
            raise RanForever

    names = {**f.__globals__, "count_turn": count_turn}
    limited = ast.fix_missing_locations(Limit().visit(tree))
    exec(compile(limited, "<mutant>", "exec"), names)
    return names[f.__name__]
