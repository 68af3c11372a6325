"""The modules hold the functions of protocol.py: same order, same parameters."""

import ast
import inspect
from pathlib import Path

import pytest

from d2lmulti.backends import protocol

VERBS = [n for n, f in vars(protocol.Backend).items() if inspect.isfunction(f)]
VERBS = [n for n in VERBS if not n.startswith("_")]
OPTIONAL = ("own_gpu", "describe_gpus")  # only some frameworks have more to say
MODULES = ["pytorch", "mxnet", "paddle", "numpy"]


def parameters(function, skip=0):
    found = list(inspect.signature(function).parameters.values())[skip:]
    return [(p.name, p.kind, p.default) for p in found]


@pytest.mark.parametrize("module", MODULES)
def test_functions_stand_in_the_order_of_the_protocol(module):
    source = Path(protocol.__file__).with_name(f"{module}.py").read_text("utf-8")
    functions = [
        n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)
    ]
    public = [n for n in functions if not n.startswith("_")]
    assert [n for n in public if n not in OPTIONAL] == VERBS


def test_parameters_have_the_names_kinds_and_defaults_of_the_protocol(B):
    # mypy accepts a module whose parameter was renamed; a keyword call would fail.
    for verb in VERBS:
        expected = parameters(getattr(protocol.Backend, verb), skip=1)  # without self
        assert parameters(getattr(B, verb)) == expected, verb
