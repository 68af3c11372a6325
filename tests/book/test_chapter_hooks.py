"""What `pytest --nbval chapters` catches beyond nbval: pytest on faulty notebooks."""

import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from book.conftest import with_checkout
from book.notebooks import ROOT, code, printed, save
from nbformat.v4 import new_output

pytestmark = pytest.mark.xdist_group("under_torch")  # run once
LOAD = code("%load_ext d2lmulti_book.notebook")


def value(text, n=1):
    return new_output("execute_result", data={"text/plain": text}, execution_count=n)


PASSES = {
    "torch": code(
        "%%tab torch\nimport os\nos.environ['D2LMULTI_BACKEND']", value("'torch'")
    ),
    "mxnet": code("%%tab mxnet\n1 / 0"),
    "semicolon": code("6 * 7;"),
    "this python": code(
        f"import sys\nsys.executable == {sys.executable!r}", value("True")
    ),
    "raises": code(
        "1 / 0",
        new_output("error", ename="ZeroDivisionError", evalue="division by zero"),
        tags=("raises-exception",),
    ),
    "gpus": code("%%gpu 999\nraise SystemError", printed("?")),
}
SKIPPED = {"mxnet": "a cell of mxnet", "gpus": "999 GPUs"}
CAREFUL = "import sys\nprint('careful', file=sys.stderr)"
FAILS = {
    "never executed": (code("x = 1", count=None), "never executed"),
    "other output": (code("print(x)", printed("2\n")), "Cell outputs differ"),
    "stored stderr": (code(CAREFUL, printed("careful\n", "stderr")), "holds stderr"),
    "new stderr": (code(CAREFUL, tags=("nbval-ignore-output",)), "wrote to stderr"),
    "unknown tab": (code("%%tab tensorflow\n1", value("1")), "caused an exception"),
}
DIES = (code("import os\nos._exit(3)"), code("1", value("1")))


def run(folder, *options, chapters="chapters", **environment):
    """Run pytest on the chapters of a folder; return its output and its results."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "nbval.plugin", "--nbval"]
    command += [chapters, "--color=no", f"--junitxml={report}", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        # Other plugins only make it slower to start.
        env=with_checkout() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        capture_output=True,
        text=True,
    )
    results = {}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            parts = [(p.tag, f"{p.get('message')} {p.text}") for p in case]
            chapter = case.get("classname").split(".")[-2]  # chapters.NAME.ipynb
            number = int(case.get("name").split()[-1])
            results[chapter, number] = parts
        report.unlink()
    return done, results


def write_chapters(folder):
    (folder / "pytest.ini").write_text("[pytest]\n")
    save(folder / "chapters/passes.ipynb", LOAD, *PASSES.values())
    save(folder / "chapters/fails.ipynb", LOAD, *(cell for cell, _ in FAILS.values()))
    save(folder / "chapters/dies.ipynb", *DIES)
    shutil.copy(ROOT / "chapters/conftest.py", folder / "chapters")
    return folder


@pytest.fixture(scope="module")
def under_torch(tmp_path_factory):
    folder = write_chapters(tmp_path_factory.mktemp("under_torch"))
    return run(folder, D2LMULTI_BACKEND="torch")[1]


def test_what_is_right_passes_and_other_backends_are_skipped(under_torch):
    for number, name in enumerate(PASSES, 1):
        found = under_torch["passes", number]
        if name in SKIPPED:
            ((kind, words),) = found
            assert kind == "skipped" and SKIPPED[name] in words
        else:
            assert found == [], name


def test_what_is_wrong_fails(under_torch):
    for number, (name, (_, expected)) in enumerate(FAILS.items(), 1):
        ((kind, words),) = under_torch["fails", number]
        assert kind == "failure" and expected in words, name


def test_a_dead_kernel_fails_at_once(under_torch):
    (kind, words), (after, _) = under_torch["dies", 0][0], under_torch["dies", 1][0]
    assert kind == after == "failure" and "the kernel died" in words
