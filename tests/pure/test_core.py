"""The core is small: which files a step and an all-reduce enter."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import core
import numpy as np
import pytest

import d2lmulti
from d2lmulti import SGD, allreduce, devices, get_backend, get_params, train_batch
from d2lmulti.comm.group import cached_plan
from d2lmulti.models.networks import LENET

PACKAGE = Path(d2lmulti.__file__).parent
OWN = {"torch": {"pytorch.py"}, "numpy": {"numpy.py", "autograd.py", "common.py"}}
CHECKS = "checks.py"  # asked once, at the edge: what is no list, no rate, no device
MAX_STEP_FILES = 10


def trace(run: Any) -> Counter[tuple[str, str]]:
    """Count the calls of each function of the library, as (file, name), during `run`.

    A comprehension is no function: from Python 3.12 on it is no call either.
    """
    calls: Counter[tuple[str, str]] = Counter()

    def watch(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            if not code.co_name.startswith("<"):
                name = f"{code.co_name} (line {code.co_firstlineno})"
                calls[path.relative_to(PACKAGE).as_posix(), name] += 1

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def files(calls: Counter[tuple[str, str]]) -> set[str]:
    return {file for file, _ in calls}


@pytest.fixture(params=["torch", "numpy"])
def B(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return get_backend(request.param)


def a_step(B, algorithm: str) -> Any:
    rng = np.random.default_rng(0)
    start = [B.array(p.astype("float32")) for p in LENET.initial(rng)]
    X = B.array(rng.normal(size=(4, 1, 28, 28)).astype("float32"))
    y, places = B.array(rng.integers(0, 10, 4)), devices(2, B.name, simulate=True)
    states = [SGD(0.9).init(start) for _ in places]
    how = {"optimizer": SGD(0.9), "states": states, "algorithm": algorithm}

    def step() -> None:
        device_params = [get_params(start, place) for place in places]
        train_batch(X, y, device_params, places, 0.1, **how)

    return step


def test_a_first_step_enters_the_core_and_the_backends_own_module(B) -> None:
    cached_plan.cache_clear()  # plans that another test has made
    entered = files(trace(a_step(B, "ring")))
    names = {name.removeprefix("d2lmulti/") for name in core.core_files()}
    own = {f"backends/{name}" for name in OWN[B.name]} | {CHECKS}
    assert entered - names - own == set()
    assert names - entered == set()


def test_a_step_with_pytorch_enters_ten_files() -> None:
    pytest.importorskip("torch")
    step = a_step(get_backend("torch"), "star")
    step()  # plans are cached from now on
    assert len(entered := files(trace(step))) <= MAX_STEP_FILES, sorted(entered)


def test_an_all_reduce_is_25_calls_in_five_files(B) -> None:
    if B.name == "numpy":
        pytest.skip("its tensors are objects of ours, which is more calls")
    data = [B.array(np.ones(1, "float32")) for _ in range(2)]
    allreduce(data)  # the plan is cached from now on
    calls = trace(lambda: allreduce(data))
    assert sum(calls.values()) <= 25, calls
    assert len(files(calls)) <= 5, calls


def test_the_core_is_within_its_budget() -> None:
    assert len(core.core_files()) <= core.MAX_FILES
    assert core.core_lines() <= core.MAX_LINES
