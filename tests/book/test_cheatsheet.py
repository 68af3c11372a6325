"""Every name on the cheat sheet exists in the tool that it is ascribed to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from d2lmulti.notebook import is_installed

SHEET = Path(__file__).resolve().parents[2] / "chapters" / "cheatsheet.md"
TOOLS = "MXNet PyTorch Paddle TensorFlow Keras TF-Slim Horovod Caffe".split()
# Alias -> module; those of one line are looked up in one process, in this order.
MODULES = (
    {"mx": "mxnet"},
    {"torch": "torch", "hvd": "horovod.torch"},
    {"paddle": "paddle"},
    {"tf": "tensorflow", "keras": "keras"},
)
RESOLVE = """
import importlib, sys, warnings
warnings.simplefilter("ignore")
for asked in sys.argv[1:]:
    module, name = asked.split(":")
    thing = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part, None)
    if thing is None:
        print(asked)
"""


def rows() -> list[list[str]]:
    lines = [l for l in SHEET.read_text("utf-8").splitlines() if l[:2] == "| "]
    return [[cell.strip() for cell in l.strip("|").split("|")] for l in lines[1:]]


def names(alias: str) -> list[str]:
    """Return the dotted names that follow this alias, such as cuda.device_count."""
    code = " ".join(re.findall(r"`([^`]+)`", " ".join(how for _, _, how in rows())))
    code = re.sub(r'"[^"]*"', '""', code).replace("python -m paddle", "")
    return sorted(set(re.findall(rf"(?<![\w.]){alias}\.(\w+(?:\.\w+)*)", code)))


def test_every_step_is_told_for_every_tool() -> None:
    steps: list[list[str]] = []
    for step, tool, how in rows():
        if step:
            steps.append([])
        steps[-1] += tool.split(", ")
        assert how
    assert len(steps) >= 10
    for tools in steps:
        assert sorted(tools) == sorted(TOOLS)


@pytest.mark.parametrize("group", MODULES, ids=" ".join)
def test_names_exist(group: dict[str, str]) -> None:
    asked, missing = [], []
    for alias, module in group.items():
        top = module.partition(".")[0]
        if is_installed(top):
            wanted = names(alias)
            assert len(wanted) >= 2
            asked += [f"{module}:{name}" for name in wanted]
        elif top in os.environ.get("D2LMULTI_REQUIRE", "").split(","):
            pytest.fail(f"D2LMULTI_REQUIRE names {top}, which is not installed")
        else:
            missing.append(top)
    if not asked:
        pytest.skip(f"needs {' and '.join(missing)}")
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, *asked],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.split() == []
