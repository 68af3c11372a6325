"""The failure lab: its messages have a version, each broken run one right answer."""

from __future__ import annotations

import re
from typing import Any

import nbformat
from book.notebooks import ROOT
from notebook_rules import printed

PAGE = nbformat.read(ROOT / "chapters" / "failures.ipynb", as_version=4)
RIGHT = {
    "first": "different collectives",
    "second": "uneven numbers of batches",
    "third": "set_epoch forgotten",
}


def cell_with(text: str) -> str:
    cells = [c.source for c in PAGE.cells if c.cell_type == "code"]
    (found,) = [source for source in cells if text in source]
    return found


def test_the_messages_are_those_of_the_version_that_is_required() -> None:
    outputs = [o for c in PAGE.cells for o in c.get("outputs", [])]
    shown = re.search(r"^PyTorch ([\d.]+) ", "\n".join(map(printed, outputs)), re.M)
    pin = re.search(r"^torch==([\d.]+)$", (ROOT / "requirements.txt").read_text(), re.M)
    assert shown and pin
    assert shown[1] == pin[1], (
        f"the messages of chapters/failures.ipynb were printed by torch {shown[1]}, "
        f"and torch {pin[1]} is required: run `python tools/execute.py "
        "chapters/failures.ipynb` and read what has changed"
    )


def test_each_broken_run_has_one_right_answer_that_the_page_does_not_tell() -> None:
    names: dict[str, Any] = {}
    exec(cell_with("DIGESTS"), names)
    assert set(names["answers"]) == set(RIGHT)
    for name, cause in RIGHT.items():
        assert (ROOT / "examples" / "broken" / f"{name}.py").is_file()
        graded = {c: names["grade"](name, c) for c in names["CAUSES"]}
        assert [c for c, mark in graded.items() if mark == "right"] == [cause]
        assert "choose one of" in names["grade"](name, "the moon")
        script = (ROOT / "examples" / "broken" / f"{name}.py").read_text()
        assert cause not in script
    assert all(answer is None for answer in names["answers"].values())
