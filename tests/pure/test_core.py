"""The core is small: which files a step and an all-reduce enter, and how many calls."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import core
import numpy as np
import pytest

import d2lmulti
from d2lmulti import SGD, allreduce, devices, get_backend, get_params, train_batch
from d2lmulti.comm.allreduce import _remembered as remembered
from d2lmulti.models.networks import LENET

PACKAGE = Path(d2lmulti.__file__).parent
OWN = {"torch": {"pytorch"}, "numpy": {"numpy", "autograd", "common"}}
# Asked once, at the edge: what is no list, no rate, no device.

CHECKS = {"checks.py", "errors.py"}


def trace(run: Any) -> Counter[str]:
    """Count the calls of Python functions in each file of the library during `run`."""
    calls: Counter[str] = Counter()

    def watch(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            calls[path.relative_to(PACKAGE).as_posix()] += 1

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture(params=["torch", "numpy"])
def B(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return get_backend(request.param)


def test_a_step_enters_the_core_and_the_backends_own_module(B) -> None:
    rng = np.random.default_rng(0)
    start = [B.array(p.astype("float32")) for p in LENET.initial(rng)]
    X = B.array(rng.normal(size=(4, 1, 28, 28)).astype("float32"))
    y, places = B.array(rng.integers(0, 10, 4)), devices(2, B.name, simulate=True)

    states = [SGD(0.9).init(start) for _ in places]

    def step() -> None:
        device_params = [get_params(start, place) for place in places]
        how = {"optimizer": SGD(0.9), "states": states, "algorithm": "ring"}
        train_batch(X, y, device_params, places, 0.1, **how)

    remembered.cache_clear()  # plans that another test has made
    entered = set(trace(step))
    names = {name.removeprefix("d2lmulti/") for name in core.core_files()}
    own = {
        "torch": {"pytorch.py", "common.py"},
        "numpy": {"numpy.py", "autograd.py", "common.py"},
    }
    own_files = {f"backends/{name}" for name in own[B.name]} | CHECKS
    assert entered - names - own_files == set()
    assert names - entered == set()


def test_an_all_reduce_is_25_calls_in_five_files(B) -> None:
    if B.name == "numpy":
        pytest.skip("its tensors are objects of ours, which is more calls")
    data = [B.array(np.ones(1, "float32")) for _ in range(2)]
    allreduce(data)  # the plan is remembered from now on
    calls = trace(lambda: allreduce(data))
    assert sum(calls.values()) <= 25, calls
    assert len(calls) <= 5, calls


def test_the_core_is_within_its_budget() -> None:
    assert core.core_rules(core.core_lines()) == []


def test_a_larger_core_is_found() -> None:
    (found,) = core.core_rules({"a.py": 1000, "b.py": 1101})
    assert found.startswith("the core: 2101 lines, at most 2100")
    (found,) = core.core_rules({f"{i}.py": 1 for i in range(14)})
    assert found.startswith("the core: 14 files, at most 13")


def test_an_import_from_outside_the_core_is_found() -> None:
    imports = {"d2lmulti.a": {"d2lmulti.b", "d2lmulti.c", "d2lmulti.checks", "math"}}
    imports["d2lmulti.b"] = {"numpy", "tqdm"}
    graph = SimpleNamespace(find_modules_directly_imported_by=imports.__getitem__)
    assert core.strange_imports(graph, set(imports)) == [
        ("d2lmulti.a", "d2lmulti.c"),
        ("d2lmulti.b", "tqdm"),
    ]
