"""`import d2lmulti` imports no framework; the examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
import warnings
from types import ModuleType

import pytest

import d2lmulti
import d2lmulti_book
import d2lmulti_cluster

# What is imported only where it is used: the frameworks, and what takes long.
FRAMEWORKS = ("torch", "mxnet", "paddle", "horovod")
LATE = (*FRAMEWORKS, "matplotlib", "sklearn", "pooch", "tqdm", "IPython")
MODULES = [
    module.name
    for package in (d2lmulti, d2lmulti_book, d2lmulti_cluster)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]
MODULES.remove("d2lmulti.__main__")  # to import it is to run it


def test_neither_the_import_nor_the_digits_import_what_takes_long():
    code = "import d2lmulti, sys; d2lmulti.load('digits'); print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert {*LATE, "scipy", "pandas"}.isdisjoint(told.stdout.split())


def test_public_names_are_what_is_listed():
    assert set(d2lmulti.__all__) <= set(dir(d2lmulti))
    with pytest.raises(AttributeError, match="'no_such_name'"):
        _ = d2lmulti.no_such_name


def load_module(name: str) -> ModuleType:
    try:
        with warnings.catch_warnings():  # a framework may warn while it is imported
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:
        if any(framework in name for framework in FRAMEWORKS):
            pytest.skip(f"{name} does not import: {error!r}")
        raise


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(load_module(name), optionflags=flags).failed == 0
