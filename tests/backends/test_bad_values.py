"""Nonsense for every parameter of every public function.

What is wrong is refused in one sentence, by an error of ours, before any work. The
tables are in `bad_values.py`; what is tried is what the signatures say.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from backends.bad_values import PARAMETERS, RIGHT, VALUES
from backends.good_calls import World
from backends.public import find_public, parameters
from backends.pure_calls import pure_calls

from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.checks import shown
from d2lmulti.errors import D2LMultiError

PUBLIC = find_public()
NEED_PROCESSES = ("processes.launch", "processes.mxnet_servers.launch_kvstore")


def kind_of(name: str, parameter: str) -> str | None:
    """Look a parameter's kind up: that of the function first, then that of its name."""
    last = name.rpartition(".")[2].partition("[")[0]
    return PARAMETERS.get(f"{last}.{parameter}", PARAMETERS.get(parameter))


def test_every_parameter_has_a_kind() -> None:
    missing = [
        f"{name}({parameter})"
        for name, thing in PUBLIC.items()
        for parameter in parameters(thing)
        if kind_of(name, parameter) not in RIGHT
    ]
    assert not missing, f"say of which kind they are, in bad_values.py: {missing}"


def test_every_function_has_a_call(tmp_path: Path) -> None:
    world = World(get_backend("numpy"), tmp_path)
    missing = set(PUBLIC) - {*world.calls(), *pure_calls(world)}
    assert not missing, f"show a call that works, in good_calls.py: {sorted(missing)}"


def finish(value: Any) -> None:
    """Take what a generator gives: it may check only then."""
    if inspect.isgenerator(value) or isinstance(value, Iterator):
        for _ in islice(value, 5):
            pass


def names_of(which: str) -> list[str]:
    world = World(get_backend("numpy"), Path())
    calls = world.calls() if which == "tensors" else pure_calls(world)
    return sorted(set(PUBLIC) & set(calls))


@pytest.mark.dealt
@pytest.mark.parametrize("name", names_of("tensors"))
def test_nonsense_is_refused(
    B: Backend, name: str, tmp_path: Path, record_property: Any
) -> None:
    try_all(name, World(B, tmp_path).calls(), record_property)


@pytest.mark.parametrize("name", names_of("no tensors"))
def test_nonsense_without_tensors_is_refused(
    name: str, tmp_path: Path, record_property: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(get_backend("numpy"), tmp_path)
    if name == "training.checkpoint.load_checkpoint":
        save, given = pure_calls(world)["training.checkpoint.save_checkpoint"]()
        save(**given)
    try_all(name, pure_calls(world), record_property)


def try_all(name: str, calls: Any, record_property: Any) -> None:
    function, given = calls[name]()
    if name not in NEED_PROCESSES:
        finish(function(**given))  # else what is refused is something else
    tried, wrong = 0, []
    for parameter, about in parameters(PUBLIC[name]).items():
        right = RIGHT[kind_of(name, parameter) or ""]
        for word, value in VALUES.items():
            if word in right or (value is None and about.default is None):
                continue
            tried += 1
            said = outcome(name, calls, {parameter: copy.copy(value)})
            if said:
                wrong.append(f"{parameter}={shown(value)}: {said}")
    record_property("bad values", tried)
    assert not wrong, f"{name}:\n" + "\n".join(wrong)


def outcome(name: str, calls: Any, change: dict[str, Any]) -> str:
    """Say what is wrong with what a call does, or nothing."""
    function, given = calls[name]()
    try:
        finish(function(**{**given, **change}))
    except D2LMultiError as error:
        message = str(error)
        if "\n" in message or len(message) > 500:
            return f"an error of {message.count(chr(10)) + 1} lines: {message:.80}"
        return ""
    except Exception as error:
        return f"a raw {type(error).__name__}: {error!s:.80}"
    return "accepted"
