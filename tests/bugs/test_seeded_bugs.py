"""Ordinary tests, of general properties, notice planted mistakes.

Each bug of `bugs.py` is planted in a copy of the library, and the test that it names
runs there, with PyTorch on simulated devices or in processes of NumPy. pytest prints
the table bug -> the test that turned red.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from bugs.bugs import BUGS, PLAIN_NUMPY, PROCESSES, Bug
from bugs.forked import run_pytest

# One worker runs them all: only its first fork waits for the import of the frameworks.
pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.xdist_group("bugs")]

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 100  # seconds for a test: a bug may make it wait for ever

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch runs these; pip install torch", allow_module_level=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The library and its tests, compiled files too, without the bugs and the book."""
    skip = shutil.ignore_patterns("bugs", "book", "peers")
    for name in ("d2lmulti", "d2lmulti_cluster", "d2lmulti_book", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("tools", "_ext"):  # on pytest's path
        (tmp_path / name).mkdir()
    return tmp_path


def plant(bug: Bug, copy: Path) -> None:
    path = copy / "d2lmulti" / bug.file
    text = path.read_text(encoding="utf-8")
    count = text.count(bug.old)
    assert count == 1, (
        f"the patch {bug.name!r} expects its old text once in {bug.file}, found it "
        f"{count} times; bring tests/bugs/bugs.py up to date: {bug.old!r}"
    )
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")


def run_tests(copy: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests in `copy`; return the exit status and the output."""
    options = ["-q", "--tb=short", "-rf", "--no-header", f"--timeout={TIMEOUT}"]
    options += ["-p", "no:cacheprovider", "-p", "no:nbval", "--assert=plain"]
    arguments = [*options, *(f"tests/{test}" for test in tests)]
    return run_pytest(copy, arguments, TIMEOUT * (1 + len(tests)))


def test_in_an_unpatched_copy_tests_are_green(copy: Path) -> None:
    tests = [PLAIN_NUMPY, PROCESSES]  # in one process, and in others
    status, output = run_tests(copy, tests)
    assert status == 0, output
    assert f"{len(tests)} passed" in output


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_suite_turns_red(bug: Bug, copy: Path, record_property) -> None:
    plant(bug, copy)
    status, output = run_tests(copy, [bug.test])
    red = re.findall(r"^FAILED \S*::(\w+)", output, re.MULTILINE)
    assert status == 1 and red, (
        f"{bug.test} did not notice that {bug.name}; find a test that does and name it "
        f"in tests/bugs/bugs.py:\n{output}"
    )
    record_property("bug", (bug.name, [f"{test} x1" for test in red]))
