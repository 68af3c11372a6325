"""D2L's modules as fixtures; skipped where the package or the framework is missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import warnings

import pytest


def import_d2l(name: str) -> types.ModuleType:
    """Import `d2l.<name>`, which warns of pandas and others on the way."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(f"d2l.{name}")
    except ImportError as error:
        pytest.skip(f"d2l.{name} does not import ({error}); pip install d2l==1.0.3")


@pytest.fixture(scope="session")
def d2l_mxnet(load) -> types.ModuleType:
    """D2L's MXNet functions."""
    load("mxnet")  # first: it switches on NumPy semantics, which D2L needs
    return import_d2l("mxnet")


@pytest.fixture(scope="session")
def d2l_torch(load) -> types.ModuleType:
    """D2L's PyTorch functions, of those that need no torchvision.

    The module imports torchvision, for which this CPU set-up has no wheel; a stub takes
    its place during the import, and any use of it would fail.
    """
    load("torch")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torchvision") is None:
            stub = types.ModuleType("torchvision")
            stub.transforms = types.ModuleType("torchvision.transforms")
            patch.setitem(sys.modules, "torchvision", stub)
            patch.setitem(sys.modules, "torchvision.transforms", stub.transforms)
        return import_d2l("torch")
