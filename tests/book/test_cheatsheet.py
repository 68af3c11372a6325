"""Every row of the cheat sheet is carried out, on two devices or by two processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from book import cheat_processes

from d2lmulti.processes.launcher import launch

SHEET = Path(__file__).resolve().parents[2] / "chapters" / "cheatsheet.md"
SHELL = ("torchrun ", "python ", "horovodrun ")


def tools() -> dict[str, dict[str, str]]:
    """Return {tool: {step: how}} as the page has them."""
    found = {}
    for block in SHEET.read_text("utf-8").split(":::{tab-item} ")[1:]:
        rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", block, re.MULTILINE)
        found[block.partition("\n")[0]] = dict(rows)
    return found


def code_of(tool: str) -> dict[str, list[str]]:
    """Return {step: pieces of Python} of a tool; a word alone is no code."""
    return {
        step: [
            code
            for code in re.findall(r"`([^`]+)`", re.sub(r"\{\w+\}`\w+`", "", how))
            if ("(" in code or "=" in code) and not code.startswith(SHELL)
        ]
        for step, how in tools()[tool].items()
    }


def test_all_tools_have_their_steps_in_one_order() -> None:
    found = tools()
    assert len(found) == 8 and len(found["PyTorch"]) == 19
    for rows in found.values():
        assert list(rows) == [step for step in found["PyTorch"] if step in rows]
        assert len(rows) >= 8 and "none" not in rows.values()


@pytest.mark.parametrize(
    ("tool", "module", "engine"),
    [
        ("PyTorch", "torch", None),
        ("Paddle", "paddle", None),
        ("Horovod", "horovod", "horovod"),
    ],
)
def test_rows_run_in_two_processes(tool, module, engine, need, tmp_path: Path) -> None:
    need(module)
    rows = getattr(cheat_processes, f"{module}_rows")
    backend = "torch" if module == "horovod" else module
    need(backend)
    given = (code_of(tool), str(tmp_path))
    run = launch(rows, 2, *given, engine=engine, backend=backend, timeout=200)
    assert run.values == [[], []]  # no row was left out


@pytest.mark.parametrize(
    ("tool", "module"),
    [("MXNet", "mxnet"), ("TensorFlow", "tensorflow"), ("Keras", "tensorflow")],
)
def test_rows_run_on_two_devices(tool, module, need, tmp_path: Path) -> None:
    need(module)
    command = (
        "import json, sys; from book import cheat_devices\n"
        f"left = cheat_devices.{tool.lower()}_rows(*json.loads(sys.argv[1]))\n"
        "assert left == [], left"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, json.dumps([code_of(tool), str(tmp_path)])],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1500:]
