"""get_backend and backend_of: the right module, or one sentence that helps."""

import importlib
import subprocess
import sys
import types

import numpy as np
import pytest

from d2lmulti.backends import (
    BACKENDS,
    backend_of,
    get_backend,
    owner_of,
    register_backend,
)
from d2lmulti.errors import InvalidInput


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )


ALIASES = {"torch": "pytorch", "paddle": "paddlepaddle"}


def test_a_backend_is_found_by_its_names_and_by_the_variable(B, monkeypatch):
    assert get_backend(B.name) is get_backend(ALIASES.get(B.name, B.name)) is B
    monkeypatch.setenv("D2LMULTI_BACKEND", B.name)
    assert get_backend() is B


def test_mxnet_after_tensorflow_is_refused_before_it_crashes():
    code = (
        "import sys, types; sys.modules['tensorflow'] = types.ModuleType('tensorflow')"
        "\nimport d2lmulti; d2lmulti.get_backend('mxnet')"
    )
    done = run_python(code)
    assert done.returncode == 1
    assert "InvalidInput: expected mxnet to be loaded before tensorflow" in done.stderr


def test_an_unknown_name_is_an_error(monkeypatch):
    with pytest.raises(InvalidInput, match="torch, mxnet, paddle, numpy as backend"):
        get_backend("Torch")
    monkeypatch.setenv("D2LMULTI_BACKEND", "jax")
    with pytest.raises(InvalidInput, match="D2LMULTI_BACKEND"):
        get_backend()


def test_a_framework_that_breaks_on_import_gives_the_reason(tmp_path):
    # MXNet 1.9.1 on NumPy 2 ends like this: module 'numpy' has no attribute 'bool'.
    (tmp_path / "mxnet").mkdir()
    (tmp_path / "mxnet" / "__init__.py").write_text("import sys; sys.no_such_thing")
    code = "import sys; sys.path.insert(0, sys.argv[1])\n"
    code += "from d2lmulti.backends import get_backend; get_backend('mxnet')"
    error = run_python(code, str(tmp_path)).stderr
    assert "BackendNotInstalled" in error and "no_such_thing" in error
    assert "pip install 'mxnet==1.9.1' 'numpy<1.24'" in error


def test_backend_of_knows_the_owner_of_results_gradients_and_layers(B):
    x = B.array(np.ones((2, 3)))
    B.attach_grad(x)
    with B.record():
        y = x * 2
    found = [x, y, B.grad(x)]
    if B.name in ("torch", "paddle"):  # whose parameters have a class of their own
        found.append(importlib.import_module(B.name).nn.Linear(2, 3).weight)
    assert [backend_of(z) for z in found] == [B] * len(found)
    assert all(isinstance(z, B.Tensor) for z in found)


# -- a backend of one's own ------------------------------------------------------------


class OwnTensor:
    def __init__(self, value):
        self.value = value


@pytest.fixture
def own(monkeypatch):
    module = types.ModuleType("backend_of_ones_own")
    module.Tensor, module.name = OwnTensor, "own"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = dict(BACKENDS)
    yield module
    BACKENDS.clear()
    BACKENDS.update(before)
    owner_of.cache_clear()


def test_a_module_of_ones_own_owns_its_tensors(own):
    with pytest.raises(InvalidInput, match="expected a tensor of"):
        backend_of(OwnTensor(1))
    for _ in range(2):  # a cell may run again
        register_backend("own", own)
    assert backend_of(OwnTensor(1)) is own
    assert get_backend("own") is own
