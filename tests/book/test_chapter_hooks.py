"""What `pytest --nbval chapters` catches: runs of pytest on notebooks with faults."""

import importlib.util
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from book.conftest import once, with_checkout
from book.notebooks import ROOT, code, picture, printed, save
from nbformat.v4 import new_output

LOAD = code("%load_ext d2lmulti_book.notebook")


def value(text, n=1):
    return new_output("execute_result", data={"text/plain": text}, execution_count=n)


PASSES = {
    "executed": code("print(6 * 7)", printed("42\n")),
    "torch": code(
        "%%tab torch\nimport os\nos.environ['D2LMULTI_BACKEND']", value("'torch'")
    ),
    "mxnet": code(
        "%%tab mxnet\nimport os\nos.environ['D2LMULTI_BACKEND']", value("'mxnet'")
    ),
    "quiet": code("print(os.environ['D2LMULTI_QUIET'])", printed("1\n")),
    "semicolon": code("6 * 7;"),
    "value": code("6 * 7", value("42")),
    "last value": code("_ + 1", value("43")),
    "this python": code(
        f"import sys\nsys.executable == {sys.executable!r}", value("True")
    ),
    "pieces": code(
        "import time\nfor i in range(3):\n    print(i, flush=True); time.sleep(0.2)",
        printed("0\n"),
        printed("1\n2\n"),
    ),
    "child": code(
        "import subprocess\nsubprocess.run(['echo', 'child']);", printed("child\n")
    ),
    "raises": code(
        "1 / 0",
        new_output("error", ename="ZeroDivisionError", evalue="division by zero"),
        tags=("raises-exception",),
    ),
    "ignored": code(
        "print(time.time())", printed("0\n"), tags=("nbval-ignore-output",)
    ),
    "gpus": code("%%gpu 999\nraise SystemError", printed("?")),
}

FAILS = {
    "never executed": (code("x = 1", count=None), "never executed"),
    "other output": (code("print(x)", printed("2\n")), "Cell outputs differ"),
    "no output": (code("x"), "Unexpected output"),
    "stored stderr": (
        code(
            "import sys\nprint('careful', file=sys.stderr)",
            printed("careful\n", "stderr"),
        ),
        "stored output holds stderr",
    ),
    "new stderr": (
        code(
            "import sys\nprint('careful', file=sys.stderr)",
            tags=("nbval-ignore-output",),
        ),
        "wrote to stderr",
    ),
    "unknown magic": (
        code("%%no_such_magic\n1", tags=("nbval-ignore-output",)),
        "wrote to stderr",
    ),
    "unknown tab": (code("%%tab tensorflow\n1", value("1")), "caused an exception"),
    "exception": (code("1 / 0"), "caused an exception"),
    "no figure": (code("'not a figure'", picture()), "Cell outputs differ"),
}

DIES = {
    "dies": code("import os\nos._exit(3)"),
    "after": code("1", value("1")),
}

TAGGED = ("without-framework",)
FORGETS = {
    "first": code("%load_ext d2lmulti_book.notebook", tags=TAGGED),
    "plain": code("print(6 * 7)", printed("42\n")),
    "asks": code("import d2lmulti\nd2lmulti.get_backend();"),
    "a child asks": code(
        "import subprocess, sys\n"
        "code = 'import d2lmulti; d2lmulti.get_backend()'\n"
        "done = subprocess.run([sys.executable, '-c', code], capture_output=True)\n"
        "print(done.stderr.decode().splitlines()[-1])",
        printed("it answered\n"),
    ),
}


def run(folder, *options, chapters="chapters", **environment):
    """Run pytest on the chapters of a folder; return its output and its results."""
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "nbval.plugin",
        "--nbval",
        chapters,
    ]
    done = subprocess.run(
        [*command, "--color=no", f"--junitxml={report}", *options],
        cwd=folder,
        # Other plugins only make it slower to start.
        env=with_checkout() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        capture_output=True,
        text=True,
    )
    results = {}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            parts = [(p.tag, p.get("message") or "", p.text) for p in case]
            chapter = case.get("classname").split(".")[-2]  # chapters.NAME.ipynb
            number = int(case.get("name").split()[-1])
            results[chapter, number] = parts
        report.unlink()
    return done, results


def write_chapters(folder):
    (folder / "pytest.ini").write_text("[pytest]\n")
    save(folder / "chapters/passes.ipynb", LOAD, *PASSES.values())
    save(folder / "chapters/fails.ipynb", LOAD, *(cell for cell, _ in FAILS.values()))
    save(folder / "chapters/dies.ipynb", *DIES.values())
    save(folder / "chapters/forgets.ipynb", *FORGETS.values())
    imports = code("import sys\nsys.modules['paddle'] = sys", tags=TAGGED)
    save(folder / "chapters/imports.ipynb", imports)
    shutil.copy(ROOT / "chapters/conftest.py", folder / "chapters")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_chapters(tmp_path)


@pytest.fixture(scope="module")
def under_torch(tmp_path_factory):
    return once(
        tmp_path_factory,
        "under_torch",
        lambda folder: run(write_chapters(folder), D2LMULTI_BACKEND="torch"),
    )


@pytest.mark.parametrize("name", PASSES)
def test_what_is_right_passes_and_other_backends_are_skipped(under_torch, name):
    results = under_torch[1]["passes", list(PASSES).index(name) + 1]
    skipped = {
        "mxnet": "a cell of mxnet",
        "gpus": "999 GPUs",
    }
    if name in skipped:
        ((kind, message, _),) = results
        assert kind == "skipped"
        assert skipped[name] in message
    else:
        assert results == []


@pytest.mark.parametrize("name", FAILS)
def test_what_is_wrong_fails(under_torch, name):
    results = under_torch[1]["fails", list(FAILS).index(name) + 1]
    ((kind, message, text),) = results
    assert kind == "failure"
    assert FAILS[name][1] in message + text


def test_a_dead_kernel_fails_at_once(under_torch):
    done, results = under_torch
    ((kind, message, text),) = results["dies", 0]
    assert kind == "failure"
    assert "the kernel died while this cell ran" in message + text
    assert results["dies", 1][0][0] == "failure"


def test_a_page_without_framework_must_not_ask_for_one(under_torch):
    _, results = under_torch
    assert [results["forgets", n] for n in (0, 1)] == [[], []]
    for n in (2, 3):
        ((kind, message, text),) = results["forgets", n]
        assert kind == "failure"
        assert "got 'none: the page is tagged without-framework'" in message + text
    ((kind, message, text),) = results["imports", 0]
    assert kind == "failure"
    assert "its first cell imports one" in message + text


@pytest.mark.skipif(
    importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"
)
def test_under_another_backend_its_own_cells_run(folder):
    done, results = run(
        folder, chapters="chapters/passes.ipynb", D2LMULTI_BACKEND="mxnet"
    )
    names = list(PASSES)
    assert results["passes", names.index("mxnet") + 1] == []
    assert "a cell of torch" in results["passes", names.index("torch") + 1][0][1]
    assert done.stdout.count("chapters under mxnet") == 1


@pytest.fixture
def without_mxnet(folder):
    """A plugin that hides mxnet, installed or not."""
    (folder / "hide_mxnet.py").write_text("import sys\nsys.modules['mxnet'] = None\n")
    return ("-p", "hide_mxnet", "-o", "pythonpath=.")


def test_a_missing_backend_is_one_clear_error(folder, without_mxnet):
    done, results = run(
        folder, *without_mxnet, D2LMULTI_BACKEND="mxnet", D2LMULTI_SETUP=""
    )
    assert done.returncode != 0
    assert results == {}
    assert "this Python has no module 'mxnet'" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("required", "kind", "words"),
    [
        ("torch", "skipped", "needs tensorflow"),
        ("torch,tensorflow", "error", "D2LMULTI_REQUIRE names tensorflow"),
    ],
)
def test_a_cell_is_skipped_without_the_module_it_needs(folder, required, kind, words):
    (folder / "hide_tf.py").write_text("import sys\nsys.modules['tensorflow'] = None\n")
    save(folder / "chapters/needs.ipynb", LOAD, code("%%needs tensorflow\n1 / 0"))
    _, results = run(
        folder,
        *("-p", "hide_tf", "-o", "pythonpath=."),
        chapters="chapters/needs.ipynb",
        D2LMULTI_BACKEND="torch",
        D2LMULTI_REQUIRE=required,
    )
    ((found, message, text),) = results["needs", 1]
    assert found == kind
    assert words in message + text
