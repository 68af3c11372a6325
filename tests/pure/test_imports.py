"""What takes long to import and is not needed is not imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from d2lmulti.data import datasets
from d2lmulti.importing import quickly


def test_the_digits_do_not_import_their_package() -> None:
    code = "import d2lmulti, sys; d2lmulti.load('digits'); print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"sklearn", "scipy", "pandas"} & {*told.stdout.split()}


def test_the_digits_are_those_of_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = datasets.load("digits")
    monkeypatch.setattr(datasets, "find_spec", lambda name: None)
    theirs = datasets.load("digits")
    assert np.array_equal(ours.train_X, theirs.train_X)
    assert np.array_equal(ours.train_y, theirs.train_y)
    assert np.array_equal(ours.test_X, theirs.test_X)
    assert np.array_equal(ours.test_y, theirs.test_y)


@pytest.mark.parametrize(
    ("backend", "useless"),
    [
        pytest.param("torch", "sympy", marks=pytest.mark.torch),
        pytest.param("mxnet", "pandas", marks=pytest.mark.mxnet),
    ],
)
def test_a_loss_goes_backward_without_what_it_does_not_need(
    backend: str, useless: str
) -> None:
    pytest.importorskip(backend)
    code = """
import sys, d2lmulti
B = d2lmulti.get_backend(sys.argv[1])
x = B.array([3.0, 4.0])
B.attach_grad(x)
with B.record():
    loss = (x * x).sum()
B.backward([loss])
print(*B.numpy(B.grad(x)), *sys.modules)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, backend],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, *loaded = told.stdout.split()
    assert (first, second) == ("6.0", "8.0") and useless not in loaded


def test_an_unwanted_module_is_missing_in_the_block_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unwanted.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with quickly("unwanted", "sys"):
        sys.modules["sys"]  # it was there already
        with pytest.raises(ImportError):
            import_module("unwanted")
    assert import_module("unwanted").__file__ == str(tmp_path / "unwanted.py")


def test_what_is_imported_is_old_at_once_and_nothing_else(tmp_path: Path) -> None:
    count = [sys.executable, "-c", "import gc; print(gc.get_freeze_count())"]
    if subprocess.run(count, capture_output=True, text=True).stdout.strip() != "0":
        pytest.skip("this Python (3.12) starts with frozen objects, which stay frozen")
    (tmp_path / "large.py").write_text("kept = [[i] for i in range(9999)]")
    code = """
import gc
from d2lmulti.importing import quickly

def young(kept):
    some = {id(x) for i in (0, 1) for x in gc.get_objects(generation=i)}
    return len(some & {*map(id, kept)})

with quickly():
    off = gc.isenabled()
    import large
told = [off, gc.isenabled(), young(large.kept)]
gc.disable()  # so that what follows stays young
with quickly():
    mine = [[i] for i in range(9999)]
told.append(young(mine))
gc.freeze()
frozen = gc.get_freeze_count()
with quickly():
    import colorsys
print(*told, gc.isenabled(), 2 * gc.get_freeze_count() > frozen)  # some may die
"""
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["False", "True", "0", "9999", "False", "True"]
