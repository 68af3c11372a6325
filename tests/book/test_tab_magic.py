"""A `%%tab` cell is an ordinary cell under its backend, and nothing under others."""

import sys
from types import SimpleNamespace

import pytest
from book.notebooks import ROOT
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from d2lmulti.backends import framework_names
from d2lmulti.errors import InvalidInput
from d2lmulti_book import notebook
from d2lmulti_book.notebook import (
    BESIDE,
    ON_GPUS,
    TABS,
    Asked,
    kernel_environment,
    split_cell,
)

# How matplotlib_inline declares its settings.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated in traitlets")


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setenv("D2LMULTI_BACKEND", "mxnet")
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
    assert result.result == 42
    assert "42" in shown
    assert shell.user_ns["x"] == 6


def test_the_cells_of_other_backends_do_nothing(shell):
    for key in ("torch", "paddle"):
        result, shown = run(shell, f"%%tab {key}\ny = 1 / 0\nprint('no')")
        assert (result.success, result.result, shown) == (True, None, "")
    assert "y" not in shell.user_ns


def test_a_cell_that_needs_a_module_runs_where_it_is_installed(shell, monkeypatch):
    monkeypatch.setitem(BESIDE, "sys", "make sys")
    monkeypatch.setenv("D2LMULTI_BACKEND", "none: this cell does not ask")
    result, _ = run(shell, "%%needs sys\nn = 1\nn / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert shell.user_ns["n"] == 1


def test_where_the_module_is_missing_the_cell_says_what_to_install(shell, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    result, shown = run(shell, "%%needs tensorflow\nm = 1\nimport tensorflow as tf")
    assert result.success
    assert "needs tensorflow" in shown
    assert "pip install 'tensorflow-cpu==2.17.1'" in shown
    assert "m" not in shell.user_ns


def test_what_to_install_is_the_pin_of_the_full_set_up():
    pins = (ROOT / "requirements.txt").read_text().split()
    how = BESIDE["tensorflow"].removeprefix("pip install ").strip("'")
    assert how in pins


@pytest.mark.parametrize("line", ["%%tab", "%%tab tensorflow", "%%tab torch mxnet"])
def test_an_unknown_key_fails_whatever_the_backend(shell, line):
    result, _ = run(shell, f"{line}\nz = 1")
    assert isinstance(result.error_in_exec, InvalidInput)
    assert "expected one of torch, mxnet, paddle" in str(result.error_in_exec)
    assert "z" not in shell.user_ns


def test_there_is_a_tab_for_every_backend_in_their_order():
    assert tuple(TABS) == framework_names()


@pytest.mark.parametrize(
    ("source", "asked", "body"),
    [
        ("%%tab torch\n\nx = 1\n", Asked("torch"), "\nx = 1\n"),
        ("\n  %%tab  paddle \nx", Asked("paddle"), "x"),
        ("%%tab mxnet", Asked("mxnet"), ""),
        ("%%tab\nx", Asked(""), "x"),
        ("x = 1\n%%tab torch", Asked(), "x = 1\n%%tab torch"),
        ("x = '%%tab torch'", Asked(), "x = '%%tab torch'"),
        ("%%table torch", Asked(), "%%table torch"),
        ("%%gpu 2\nx", Asked(gpu="2"), "x"),
        ("%%tab torch\n%%gpu 1\nx", Asked("torch", gpu="1"), "x"),
        ("%%tab torch\n%%needs horovod\n%%gpu\n", Asked("torch", "horovod", ""), ""),
        ("%%gpus 2", Asked(), "%%gpus 2"),
        ("", Asked(), ""),
    ],
)
def test_a_cell_is_split_below_its_magics(source, asked, body):
    assert split_cell(source) == (asked, body)


@pytest.fixture
def one_gpu(monkeypatch):
    backends = {"mxnet": SimpleNamespace(gpu_count=lambda: 1)}
    monkeypatch.setattr(notebook, "get_backend", backends.__getitem__)


def test_a_cell_that_needs_gpus_runs_where_they_are(shell, one_gpu):
    result, _ = run(shell, "%%tab mxnet\n%%gpu 1\ng = 1\ng / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert shell.user_ns["g"] == 1


def test_where_gpus_are_missing_the_cell_says_so_and_does_nothing(shell, one_gpu):
    result, shown = run(shell, "%%gpu 2\ng = 1 / 0")
    assert result.success and "g" not in shell.user_ns
    assert shown == "skipped: this cell needs 2 GPUs, and mxnet finds 1 here\n"
    _, shown = run(shell, "%%tab torch\n%%gpu 2\ng = 1 / 0")
    assert shown == ""  # the cell of another framework


def test_the_kernel_gets_the_checkout_the_backend_and_no_progress_bars(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("MPLBACKEND", "agg")
    env = kernel_environment("paddle", "here")
    assert env["PYTHONPATH"].startswith("here")
    assert env["PYTHONPATH"].endswith("elsewhere")
    assert (env["D2LMULTI_BACKEND"], env["D2LMULTI_QUIET"]) == ("paddle", "1")
    assert not {"MPLBACKEND", "PYTEST_CURRENT_TEST"} & set(env)
    assert ON_GPUS.items() <= env.items()
