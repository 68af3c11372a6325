"""Nonsense for every parameter of every public function, and for every option.

What is wrong is refused in one sentence, by an error of ours, before any work. The
tables are in `bad_values.py` and `bad_options.py`; what is tried is what the signatures
and the parser say.
"""

from __future__ import annotations

import argparse
import copy
import inspect
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from backends.bad_options import (
    BESIDE,
    COMBINATIONS,
    LINES,
    NEEDED,
    OPTIONS,
    RIGHT_TEXTS,
    TEXTS,
)
from backends.bad_values import PARAMETERS, RIGHT, VALUES
from backends.good_calls import World
from backends.public import find_public, parameters
from backends.pure_calls import pure_calls

from d2lmulti import cli
from d2lmulti.backends import get_backend
from d2lmulti.backends.protocol import Backend
from d2lmulti.checks import shown
from d2lmulti.cli.options import make_parser
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


# -- the command line ------------------------------------------------------------------


def options_of(command: str) -> dict[str, argparse.Action]:
    """Ask the parser for the options of a command that take a value."""
    (commands,) = (
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = commands.choices[command]._actions
    return {a.dest: a for a in found if a.nargs != 0 and a.dest != "help"}


COMMANDS = ("doctor", "train", "bench", "simulate", "plan", "validate")
ROOT = Path(__file__).parents[2]
TRIED = {
    (command, dest): [
        word for word in TEXTS if word not in RIGHT_TEXTS.get(OPTIONS.get(dest, ""), ())
    ]
    for command in COMMANDS
    for dest in options_of(command)
}


def test_every_option_has_a_kind() -> None:
    every = {dest for command in COMMANDS for dest in options_of(command)}
    assert every - set(OPTIONS) == set(), "say of which kind they are: bad_options.py"
    assert sum(map(len, TRIED.values())) + len(COMBINATIONS) >= 200


def refused(arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """Run the command line in this process; it must refuse. Give its last line."""
    try:
        status = cli.main(arguments)
    except SystemExit as stop:  # argparse's way
        status = int(stop.code or 0)
    told = capsys.readouterr()
    assert status == 2, f"{arguments}: {status}, {told.out}{told.err}"
    assert "Traceback" not in told.err and told.out == ""
    last = told.err.splitlines()[-1]
    assert "error: " in last
    return last


@pytest.mark.parametrize(("command", "dest"), TRIED)
def test_the_bad_values_of_an_option_are_refused(
    command: str, dest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture, record_property: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    action = options_of(command)[dest]
    rest = ["--backend", "numpy"] if dest != "backend" else []
    if command not in ("train", "bench"):
        rest = []
        for other, value in NEEDED.get(command, {}).items():
            file = str(ROOT / value) if other == "table" else value
            given = [file] if other == "table" else [f"--{other}", value]
            rest += given if other != dest else []
    elif command == "train":
        rest += ["--model", "mlp", "--epochs", "1"] if dest != "model" else []
    elif dest != "what":
        rest = ["devices", *rest, *(["--repeats", "1"] if dest == "threads" else [])]
    for word in TRIED[command, dest]:
        given = ["--", TEXTS[word]]
        if action.option_strings:
            given = [f"{action.option_strings[0]}={TEXTS[word]}"]
        refused([command, *rest, *BESIDE.get(dest, "").split(), *given], capsys)
        assert list(tmp_path.iterdir()) == []
    record_property("bad options", len(TRIED[command, dest]))


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_options_that_do_not_belong_together_are_refused(
    combination: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture, record_property: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    base = ["train", "--backend", "numpy", "--model", "mlp", "--epochs", "1"]
    if "--model" in combination:
        base = ["train", "--backend", "numpy"]
    last = refused([*base, *combination.split()], capsys)
    assert COMBINATIONS[combination] in last
    assert list(tmp_path.iterdir()) == []
    record_property("bad options", 1)


@pytest.mark.parametrize("line", LINES)
def test_command_lines_that_are_wrong_are_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture, record_property: Any,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert LINES[line] in refused(line.split(), capsys)
    assert list(tmp_path.iterdir()) == []
    record_property("bad options", 1)
