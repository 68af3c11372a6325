"""Chapters run from top to bottom without the help of the tests' own hooks."""

import subprocess
import sys

from book.conftest import with_checkout
from book.notebooks import ROOT, code, save

LOAD = code("%load_ext d2lmulti_book.notebook")


def run_all(*chapters, **environment):
    env = with_checkout() | environment
    env.pop("D2LMULTI_QUIET", None)  # a reader sees progress bars
    command = [sys.executable, ROOT / "tools" / "run_all.py", "--backend", "torch"]
    return subprocess.run(
        [*command, *chapters], env=env, capture_output=True, text=True
    )


def test_a_cell_that_raises_stops_its_notebook(tmp_path, load):
    load("torch")
    good = save(
        tmp_path / "good.ipynb",
        LOAD,
        code("%%gpu 999\n1 / 0"),
        code("%%tab paddle\n1 / 0"),
        code("%%tab torch\nassert True"),
        code("1 / 0", tags=("raises-exception",)),
    )
    # Only the hooks of the tests would pass over this.
    bad = save(tmp_path / "bad.ipynb", LOAD, code("1 / 0", tags=("nbval-skip",)))
    done = run_all(good, bad)
    assert done.returncode == 1
    assert "1 of 2 notebooks ran from top to bottom" in done.stdout
    assert done.stderr.count("STOPPED") == 1 and "ZeroDivisionError" in done.stderr


def test_a_chapter_that_needs_tensorflow_runs_through_without_it(tmp_path, load):
    load("torch")
    hide = "import sys\nsys.modules['tensorflow'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    chapter = ROOT / "chapters" / "tensorflow.ipynb"
    assert "%%needs tensorflow" in chapter.read_text()
    done = run_all(chapter, PYTHONPATH=f"{ROOT}:{tmp_path}")
    assert done.returncode == 0, done.stderr
