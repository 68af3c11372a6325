"""The ordinary tests notice mistakes that they were not written against.

Each bug of `bugs.py` is planted in a copy of the library, and the tests of training run
there in a process of their own, with PyTorch on simulated devices. pytest prints the
table bug -> tests that turned red.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from bugs.bugs import BUGS, PROCESSES, Bug

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ROOT = Path(__file__).resolve().parents[2]
# Of the suites one that stays in its process and one that starts others. That all are
# green is shown beside this, where they run; here it is that the copy lacks nothing.
SUITES = [BUGS[0].suite, PROCESSES]
QUICK = "not torch-lenet- and not torch-torch-4 and (not twenty_steps or mlp)"
ENOUGH = 1  # red test, then the run ends
TIMEOUT = 100  # seconds for a test: a bug may make it wait for ever

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch runs these; pip install torch", allow_module_level=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The library and its tests, compiled files too, without the bugs and the book."""
    skip = shutil.ignore_patterns("bugs", "book", "peers")
    for name in ("d2lmulti", "tests"):
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


def run_suite(
    copy: Path, suite: tuple[str, ...], written_for: tuple[str, ...] = ()
) -> tuple[int, str]:
    """Run the tests of a suite in `copy`; return the exit status and the output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {
        "PYTHONPATH": str(copy),  # before the installed d2lmulti
        "CUDA_VISIBLE_DEVICES": "",  # on simulated devices aliasing shows
        "HYPOTHESIS_PROFILE": "ci",
        "OMP_NUM_THREADS": "1",
    }
    tests = " and ".join([QUICK, *(f"not {name}" for name in written_for)])
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rf", "--no-header"]
    command += ["-p", "no:cacheprovider", "-p", "no:nbval", "--assert=plain"]
    command += [f"--maxfail={ENOUGH}", f"--timeout={TIMEOUT}"]
    command += ["-m", "torch and not slow", "-k", tests]
    command += [f"tests/backends/{name}" for name in suite]
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite[0])
def test_the_unpatched_copy_is_green(copy: Path, suite: tuple[str, ...]) -> None:
    status, output = run_suite(copy, suite)
    assert status == 0, output


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_suite_turns_red(bug: Bug, copy: Path, record_property) -> None:
    plant(bug, copy)
    status, output = run_suite(copy, bug.suite, bug.written_for)
    red = re.findall(r"^FAILED \S*::(.*?)(?: - .*)?$", output, re.MULTILINE)
    assert status == 1 and red, f"no test noticed that {bug.name}:\n{output}"
    tests = Counter(test.partition("[")[0] for test in red)
    record_property("bug", (bug.name, [f"{test} x{n}" for test, n in tests.items()]))


@pytest.mark.parametrize(
    ("suite", "name"), sorted({(bug.suite, n) for bug in BUGS for n in bug.written_for})
)
def test_what_does_not_count_is_a_test(suite: tuple[str, ...], name: str) -> None:
    texts = [(ROOT / "tests" / "backends" / file).read_text("utf-8") for file in suite]
    assert sum(text.count(f"def {name}(") for text in texts) == 1
