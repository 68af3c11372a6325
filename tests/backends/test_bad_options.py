"""Nonsense for every option of the command line: refused in one sentence.

The tables are in `bad_options.py`; what is tried is what the parser says.
"""

from __future__ import annotations

import argparse
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

from d2lmulti import cli
from d2lmulti.cli.options import make_parser


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
