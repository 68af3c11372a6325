"""What takes long to import and is not needed is not imported."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from d2lmulti.data import datasets


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


@pytest.mark.torch
def test_a_loss_goes_backward_without_symbols() -> None:
    pytest.importorskip("torch")
    code = """
import sys, d2lmulti
B = d2lmulti.get_backend("torch")
x = B.array([3.0, 4.0])
B.attach_grad(x)
with B.record():
    loss = (x * x).sum()
B.backward([loss])
print(*B.numpy(B.grad(x)), *sys.modules)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    first, second, *loaded = told.stdout.split()
    assert (first, second) == ("6.0", "8.0") and "sympy" not in loaded
