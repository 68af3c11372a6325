"""What `pytest --nbval chapters` catches beyond nbval: pytest on faulty notebooks.

The rules of tools/notebook_rules.py, and the chapters themselves, test the other hooks.
"""

import shutil
import subprocess
import sys

import pytest
from book.conftest import with_checkout
from book.notebooks import ROOT, code, save
from nbformat.v4 import new_output

CAREFUL = "import sys\nprint('careful', file=sys.stderr)"
ONE = new_output("execute_result", data={"text/plain": "1"}, execution_count=1)
FAULTY = {
    "it wrote to stderr": [code(CAREFUL, tags=("nbval-ignore-output",))],
    "the kernel died": [code("import os\nos._exit(3)"), code("1", ONE)],
}


@pytest.mark.parametrize("fault", FAULTY)
def test_what_is_wrong_fails(tmp_path, fault):
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}/tests\n")
    save(tmp_path / "chapters" / "faulty.ipynb", *FAULTY[fault])
    shutil.copy(ROOT / "chapters" / "conftest.py", tmp_path / "chapters")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "nbval.plugin", "--nbval", "chapters"],
        cwd=tmp_path,
        # Other plugins only make it slower to start.
        env=with_checkout() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert f"{len(FAULTY[fault])} failed" in done.stdout
    assert fault.removeprefix("it ") in done.stdout
