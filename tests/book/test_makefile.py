"""What the Makefile decides: which Python to set up with, and what may fail."""

import os
import shutil
import subprocess
import sys

import pytest
from book.notebooks import ROOT

MAKE = shutil.which("make")
pytestmark = pytest.mark.skipif(MAKE is None, reason="needs make")


@pytest.fixture
def make_setup(tmp_path):
    """`make setup` in a folder where the set-up only tells its Python."""
    path = tmp_path / "path"
    for folder in (path, tmp_path / "tools"):
        folder.mkdir()
    (path / "date").symlink_to(shutil.which("date"))
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    told = "import sys; print('made', sys.argv[1], 'with', sys.executable)"
    told += "; assert not sys.dont_write_bytecode"
    (tmp_path / "tools" / "setup_venv.py").write_text(told)

    def run(*arguments, uv=False, **programs):
        if uv:
            programs["uv"] = f'[ "$2" = find ] && echo {sys.executable} || exit 0'
        for name, script in programs.items():
            (path / name).write_text(f"#!/bin/sh\n{script}\n")
            (path / name).chmod(0o755)
        return subprocess.run(
            [MAKE, "setup", *arguments],
            cwd=tmp_path, env={"PATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True, text=True,
        )  # fmt: skip

    return run


def test_uv_brings_the_python_that_is_not_there(make_setup):
    done = make_setup(uv=True)
    assert done.returncode == 0, done.stderr
    assert "No Python 3.11 here; uv brings one." in done.stdout
    assert f"made full with {sys.executable}" in done.stdout


def test_without_python_and_uv_it_says_what_to_install(make_setup):
    done = make_setup()
    assert done.returncode and "python3.11 was not found" in done.stdout
    assert "install uv" in done.stdout


def test_the_python_that_you_name_is_taken(make_setup):
    done = make_setup(f"PYTHON={sys.executable}", uv=True)
    assert done.stdout == f"made full with {sys.executable}\n"


def test_a_python_that_does_not_fit_is_passed_over(make_setup):
    old = f'case "$2" in *version_info*) exit 1;; esac; exec {sys.executable} "$@"'
    done = make_setup("SETUP=torch", uv=True, python3=old)
    assert "uv brings one" in done.stdout and "made torch with" in done.stdout
    fits = f'exec {sys.executable} "$@"'
    assert "uv brings" not in make_setup("SETUP=torch", uv=True, python3=fits).stdout


@pytest.mark.parametrize(
    ("beside", "forgiving"),
    [("tensorflow", True), ("tensorflow horovod", False), ("", True)],
)
def test_only_beside_makes_it_an_error(beside, forgiving):
    """What `make test` runs: nothing optional stops the tests."""
    command = [MAKE, "-n", "if-horovod", f"BESIDE={beside}", f"PYTHON={sys.executable}"]
    # Not what the `make` that runs these tests was told, such as SETUP=torch.
    env = {"PATH": os.environ["PATH"]}
    told = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout
    (line,) = [line for line in told.splitlines() if "build_horovod" in line]
    assert ("--if-possible" in line) == forgiving
