"""tools/execute.py keeps each tab's own output and refuses what differs or fails."""

import importlib.util
import json
import subprocess
import sys

import execute as script
import pytest
from book.conftest import with_checkout
from book.notebooks import ROOT, code, printed, save, text
from nbformat.v4 import new_notebook

BACKENDS = ("torch", "mxnet", "paddle")
TITLE = text("# Title")
LOAD = code("%load_ext d2lmulti_book.notebook\nimport os", count=None)
NAME = "os.environ['D2LMULTI_BACKEND']"

needs_all = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in BACKENDS),
    reason="storing a chapter needs torch, mxnet and paddle",
)


def execute(*arguments):
    command = [sys.executable, ROOT / "tools" / "execute.py", *arguments]
    return subprocess.run(command, env=with_checkout(), capture_output=True, text=True)


def new(source, **options):
    return code(source, count=None, **options)


@needs_all
def test_each_tab_keeps_its_own_output_and_nothing_says_when_or_where(tmp_path):
    path = save(
        tmp_path / "good.ipynb",
        TITLE,
        LOAD,
        *(new(f"%%tab {name}\nprint('I am', {NAME})") for name in BACKENDS),
        new("6 * 7"),
        new("%%gpu 999\nundefined"),
        new("raise ValueError('on purpose')", tags=("raises-exception",)),
        new(NAME, tags=("nbval-ignore-output",)),
    )
    done = execute(path)
    assert done.returncode == 0, done.stderr
    cells = json.loads(path.read_text())["cells"][1:]
    counts = [1, 2, 3, 4, 5, None, 7, 8]  # the sixth needs GPUs
    assert [c["execution_count"] for c in cells] == counts
    shown = [[line for o in c["outputs"] for line in o["text"]] for c in cells[1:4]]
    assert shown == [["I am torch\n"], ["I am mxnet\n"], ["I am paddle\n"]]
    assert cells[4]["outputs"][0]["execution_count"] == 5
    assert cells[6]["outputs"][0]["traceback"] == ["ValueError: on purpose"]


@pytest.fixture
def printing(monkeypatch):
    """`printing(cell, ...)`: each run prints what its cells say for its backend."""

    def let_print(*cells):
        asked = []

        def run(nb, backend, folder, timeout):
            asked.append(backend)
            words = [c if isinstance(c, str) else c[backend] for c in cells]
            return {n: [printed(w)] if w else [] for n, w in enumerate(words)}

        monkeypatch.setattr(script, "run", run)
        return asked

    return let_print


def test_what_did_not_run_keeps_its_stored_output():
    kept = code("%%gpu 2\nrun()", printed("on two GPUs\n"), count=7)
    nb = new_notebook(cells=[TITLE, kept, new("%%gpu 2\nrun()"), new("1")])
    runs = {name: {2: [printed(name)]} for name in BACKENDS}
    merged = script.merged(nb, runs).cells[1:]
    assert [cell.execution_count for cell in merged] == [1, None, 3]
    words = [[output.text for output in cell.outputs] for cell in merged]
    assert words == [["on two GPUs\n"], [], ["torch"]]


@needs_all
def test_a_common_cell_that_prints_the_backend_is_refused(tmp_path, printing, capsys):
    path = save(tmp_path / "a.ipynb", TITLE, LOAD, new(f"print('same')\nprint({NAME})"))
    before = path.read_text()
    printing("", {name: f"same\n{name}\n" for name in BACKENDS})
    assert script.main([str(path)]) == 1
    said = capsys.readouterr().err
    assert all(line in said for line in ("In [2]", "-torch", "+mxnet", "+paddle"))
    assert path.read_text() == before


FAILING = {
    "stderr": (new("import sys\nsys.stderr.write('careful');"), "In [2] stderr: car"),
    "raises": (new("1 / 0"), "ZeroDivisionError"),
    "dies": (new("os._exit(3)"), "Kernel died"),
    "unexecuted": (new("print(1)"), "- stored, + now"),
}


def test_what_fails_is_refused_each_for_its_reason(tmp_path):
    paths = [
        save(tmp_path / f"{name}.ipynb", TITLE, LOAD, cell)
        for name, (cell, _) in FAILING.items()
    ]
    before = [path.read_text() for path in paths]
    done = execute(*paths, "--backend", "torch")
    assert done.returncode == 1
    assert done.stderr.count("nothing written") == len(FAILING)
    for _, complaint in FAILING.values():
        assert complaint in done.stderr
    assert [path.read_text() for path in paths] == before
