"""The page of whole scripts says what is in them."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from diff_names import named

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "chapters" / "scripts.md").read_text("utf-8")
EXAMPLES = ROOT / "examples"
LINES = 90  # of a script, at most


def lines_of(name: str) -> list[str]:
    return (EXAMPLES / name).read_text("utf-8").splitlines()


def test_the_table_counts_the_changed_lines() -> None:
    rows = re.findall(
        r"^\| `(\w+\.py)` \| `(\w+\.py)` \| (\d+) \| (\d+) \|$", PAGE, re.M
    )
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert {name for row in rows for name in row[:2]} == scripts
    for alone, many, added, taken in rows:
        changes = difflib.unified_diff(lines_of(alone), lines_of(many), n=0)
        signs = [line[0] for line in list(changes)[2:]]
        assert (signs.count("+"), signs.count("-")) == (int(added), int(taken)), many


def test_every_script_is_on_the_page_and_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert f"{{literalinclude}} ../examples/{path.name}\n" in PAGE
        assert len(lines_of(path.name)) <= LINES
    for path in EXAMPLES.glob("*.sbatch"):
        assert path.name in PAGE
    assert f"A script of {len(lines_of('pytorch_single.py'))} lines" in PAGE


def test_a_diff_names_no_folder_of_this_machine() -> None:
    lines = list(
        difflib.unified_diff(["a\n"], ["b\n"], "/home/me/x.py", "/home/me/y.py")
    )
    assert named(lines)[:2] == ["--- x.py\n", "+++ y.py\n"]
    assert named(lines)[2:] == lines[2:]
