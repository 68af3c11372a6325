"""A `%%tab` cell is an ordinary cell under its backend, and nothing under others."""

import sys
import traceback
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from d2lmulti.backends import framework_names
from d2lmulti.errors import InvalidInput
from d2lmulti_book import notebook
from d2lmulti_book.notebook import BESIDE, TABS, Asked, split_cell

# How matplotlib_inline declares its settings.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated in traitlets")


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setenv("D2LMULTI_BACKEND", "mxnet")
    backends = {"mxnet": SimpleNamespace(gpu_count=lambda: 1)}
    monkeypatch.setattr(notebook, "get_backend", backends.__getitem__)
    quiet = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell(config=quiet, colors="nocolor")
    shell.extension_manager.load_extension("d2lmulti_book.notebook")
    yield shell
    shell.extension_manager.unload_extension("d2lmulti_book.notebook")


def run(shell, cell):
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    return result, shown.stdout


def test_the_cell_of_the_chosen_backend_is_an_ordinary_cell(shell):
    result, shown = run(shell, "%%tab mxnet\nx = 6\nx * 7")
    assert result.result == 42 and "42" in shown
    assert shell.user_ns["x"] == 6
    result, _ = run(shell, "%%tab mxnet\n%%gpu 1\ng = 1\ng / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    (*_, frame) = traceback.extract_tb(result.error_in_exec.__traceback__)
    assert frame.lineno == 4  # as in the notebook, magics included


@pytest.mark.parametrize(
    ("magics", "words"),
    [
        ("%%tab torch", ""),
        ("%%tab torch\n%%gpu 2", ""),  # of another framework: nothing to say
        ("%%gpu 2", "skipped: this cell needs 2 GPUs, and mxnet finds 1 here\n"),
        ("%%needs tensorflow", "pip install 'tensorflow-cpu==2.17.1'"),
    ],
)
def test_what_cannot_run_here_does_nothing_and_says_why(
    shell, monkeypatch, magics, words
):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    result, shown = run(shell, f"{magics}\ny = 1 / 0\nprint('no')")
    assert result.success and result.result is None and "y" not in shell.user_ns
    assert words in shown and bool(shown) == bool(words)


def test_a_cell_that_needs_a_module_runs_where_it_is_installed(shell, monkeypatch):
    monkeypatch.setitem(BESIDE, "sys", "make sys")
    monkeypatch.setenv("D2LMULTI_BACKEND", "none: this cell does not ask")
    run(shell, "%%needs sys\nn = 1")
    assert shell.user_ns["n"] == 1


def test_an_unknown_key_fails_whatever_the_backend(shell):
    result, _ = run(shell, "%%tab tensorflow\nz = 1")
    assert isinstance(result.error_before_exec, InvalidInput)
    assert "z" not in shell.user_ns
    assert tuple(TABS) == framework_names()


@pytest.mark.parametrize(
    ("source", "asked", "body"),
    [
        ("%%tab torch\n\nx = 1\n", Asked("torch"), "\nx = 1\n"),
        ("\n  %%tab  paddle \nx", Asked("paddle"), "x"),
        ("x = 1\n%%tab torch", Asked(), "x = 1\n%%tab torch"),
        ("%%table torch", Asked(), "%%table torch"),
        ("%%tab torch\n%%needs horovod\n%%gpu\n", Asked("torch", "horovod", ""), ""),
    ],
)
def test_a_cell_is_split_below_its_magics(source, asked, body):
    assert split_cell(source) == (asked, body)
