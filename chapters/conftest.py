"""Make every chapter a test: `pytest --nbval chapters`, once per D2LMULTI_BACKEND.

nbval runs each code cell and compares its output with the stored one. These hooks add
what it lets pass: a cell that was never executed, stored or new stderr, a kernel that
died; they skip the cells of other backends, fork the kernels, and print how long each
chapter took.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import time
from collections import defaultdict
from pathlib import Path
from queue import Empty

import forked_kernels
import nbval.kernel
import nbval.plugin
import pytest

from d2lmulti_book.notebook import (
    TABS,
    WITHOUT,
    current_tab,
    is_installed,
    kernel_environment,
    split_cell,
)

HERE = Path(__file__).resolve().parent
REPOSITORY = str(HERE.parent)
SLOW = 15.0  # seconds that a chapter may take under one backend
CELL_TIMEOUT = 120.0  # nbval's own is 2000 s
# They begin first: at the end no worker waits for the one that has such a chapter.
LONGEST_FIRST = [
    "tensorflow", "many_machines", "built_in", "failures", "bottlenecks", "allreduce",
    "parameter_server", "sharding", "experts", "data_parallel", "why_not_faster",
    "composing",
]  # fmt: skip


# After this, whoever asks which framework was chosen gets an error: the page itself and
# the processes that it starts.
FORGET = f"""
__import__("os").environ["D2LMULTI_BACKEND"] = "none: the page is tagged {WITHOUT}"
if {set(TABS)} & __import__("sys").modules.keys():
    raise ImportError("the page is tagged {WITHOUT}, but its first cell imports one")
"""


GPUS = "__import__('d2lmulti').get_backend().gpu_count()"


# No history file that kernels share; and a framework is imported sooner if nobody looks
# for garbage among its objects.
ARGUMENTS = [
    "--HistoryManager.hist_file=:memory:",
    "--IPKernelApp.exec_lines=__import__('gc').set_threshold(100_000)",
]


class ChapterKernel(nbval.kernel.RunningKernel):
    """A kernel in the Python that runs pytest, which notices its own death."""

    def __init__(self, kernel_name, cwd=None, startup_timeout=60):
        start = nbval.kernel.start_new_kernel
        nbval.kernel.start_new_kernel = functools.partial(
            start,
            env=kernel_environment(current_tab(), REPOSITORY),
            extra_arguments=ARGUMENTS,
        )
        try:
            super().__init__(kernel_name, cwd, startup_timeout)
        finally:
            nbval.kernel.start_new_kernel = start

    def execute_cell_input(self, cell_input, allow_stdin=None):
        """Run a cell as Jupyter does: with history, so that a final `;` is obeyed."""
        return self.kc.execute(
            cell_input,
            store_history=True,
            allow_stdin=allow_stdin,
            stop_on_error=False,
        )

    def await_reply(self, msg_id, timeout=None):
        """Wait for a cell to end, but not for a kernel that has died."""
        end = time.monotonic() + (timeout or CELL_TIMEOUT)
        while True:
            left = end - time.monotonic()
            try:
                return super().await_reply(msg_id, timeout=max(0.0, min(1.0, left)))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError(
                        "the kernel died while this cell ran; run the cell's code in a "
                        "script to see why (out of memory, a crash in a framework)"
                    ) from None
                if left <= 1.0:
                    raise


def pytest_configure(config):
    """Set nbval up for chapters and refuse options that break it."""
    option = config.option
    if not (option.nbval or option.nbval_lax):
        return
    if option.nbdime:
        raise pytest.UsageError(
            "expected no --nbdime: nbval's nbdime reporter crashes; without it, "
            "differences are printed as text"
        )
    if not hasattr(config, "workerinput") and option.__dict__.get("dist", "no") not in (
        "no",
        "loadfile",
    ):
        raise pytest.UsageError(
            f"expected --dist loadfile, got --dist {option.dist}: all cells of a "
            "chapter need one kernel; add --dist loadfile"
        )
    nbval.plugin.RunningKernel = ChapterKernel
    if option.nbval_kernel_name is None:
        # Whatever a kernel called python3 may be on this machine: use this Python.
        option.nbval_current_env = True
    if option.nbval_cell_timeout == 2000:
        option.nbval_cell_timeout = CELL_TIMEOUT


def is_chapter_cell(item):
    """Tell whether a test item is a code cell of a chapter beside this file."""
    return isinstance(item, nbval.plugin.IPyNbCell) and HERE in Path(item.path).parents


def asks_for_none(item):
    """Tell whether a tag says that a cell's output is the same under any framework.

    On a page's first cell the tag speaks of the whole page (see FORGET).
    """
    return WITHOUT in item.cell.metadata.get("tags", []) and item.name != "Cell 0"


def missing_backend():
    """Say which module is missing for the chosen backend, or None."""
    module = current_tab()  # the keys are also the names of the packages
    return None if importlib.util.find_spec(module) else module


def pytest_collection_modifyitems(items):
    """Put the longest chapters first, and refuse a backend that is not installed.

    Not in the torch-only set-up, where its cells are skipped.
    """
    items.sort(key=place)
    if not any(map(is_chapter_cell, items)) or not (missing := missing_backend()):
        return
    if missing != "torch" and os.environ.get("D2LMULTI_SETUP") == "torch":
        return  # every cell is skipped below
    raise pytest.UsageError(
        f"D2LMULTI_BACKEND asks for {current_tab()}, but this Python has no module "
        f"{missing!r}; install the packages of requirements.txt, choose another "
        "backend, or set D2LMULTI_SETUP=torch to skip all but PyTorch"
    )


def place(item):
    """Give the place of an item's chapter: the longest first, others as they are."""
    known = [*LONGEST_FIRST, Path(item.path).stem]
    return known.index(known[-1])


def count_gpus(kernel):
    """Count the GPUs that the framework finds, in the kernel that has imported it."""
    if not kernel.is_alive():
        raise RuntimeError("the kernel is dead: who knows how many GPUs it would find")
    reply = kernel.kc.execute_interactive(
        "", silent=True, user_expressions={"gpus": GPUS}, timeout=CELL_TIMEOUT
    )
    found = reply["content"]["user_expressions"]["gpus"]
    if found["status"] == "error":
        raise RuntimeError(
            f"could not count the GPUs of {current_tab()}: {found['evalue']}; "
            "`python -m d2lmulti doctor` says more"
        )
    return int(found["data"]["text/plain"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    """Skip the cells of other backends and those that need more GPUs."""
    if not is_chapter_cell(item):
        return (yield)
    if missing_backend():
        pytest.skip(f"{current_tab()} is not installed")
    if item.name == "Cell 0":  # with it, the chapter's kernel starts
        plain = WITHOUT in item.cell.metadata.get("tags", [])
        forked_kernels.use(item.config.option.nbval_current_env and not plain)
    result = yield
    asked, _ = split_cell(item.cell.source)
    if asked.wrong():
        return result  # it runs, and fails
    if asks_for_none(item) and current_tab() != next(iter(TABS)):
        pytest.skip(f"asks for no framework: runs under {next(iter(TABS))} alone")
    why = asked.skipped(current_tab(), lambda: count_gpus(item.parent.kernel))
    required = os.environ.get("D2LMULTI_REQUIRE", "").split(",")
    if why and asked.needs in required and not is_installed(asked.needs):
        pytest.fail(f"D2LMULTI_REQUIRE names {asked.needs}, which is not installed")
    if why is not None:
        pytest.skip(why or f"a cell of {asked.tab}")
    return result


def stderr_of(outputs):
    """Join what went to stderr in a list of outputs."""
    return "".join(
        o["text"]
        for o in outputs
        if o["output_type"] == "stream" and o["name"] == "stderr"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """After the run of a cell, fail it for what nbval does not look at."""
    result = yield  # first, so that later cells find the names of this one
    if is_chapter_cell(item):
        cell = item.cell
        never = cell.execution_count is None and not split_cell(cell.source)[0].gpu
        if never and cell.source.strip():
            item.raise_cell_error(
                "This cell was never executed: it has no execution count. "
                "Run `python tools/execute.py` on the chapter"
            )
        if WITHOUT in cell.metadata.get("tags", []) and not asks_for_none(item):
            reply = item.parent.kernel.kc.execute_interactive(
                FORGET, silent=True, timeout=CELL_TIMEOUT
            )
            if reply["content"]["status"] == "error":
                item.raise_cell_error(reply["content"]["evalue"])
        if text := stderr_of(cell.outputs):
            item.raise_cell_error("The stored output holds stderr", text)
        if text := stderr_of(item.test_outputs or []):
            item.raise_cell_error("The cell wrote to stderr", text)
    return result


TIMES = defaultdict(lambda: {"setup": 0.0, "call": 0.0, "teardown": 0.0})
COUNTS = defaultdict(lambda: defaultdict(int))


def pytest_runtest_logreport(report):
    """Add up times and results per chapter; under xdist too."""
    path, _, cell = report.nodeid.partition("::")
    if path.endswith(".ipynb") and cell.startswith("Cell "):
        TIMES[path][report.when] += report.duration
        if report.when == "call" or report.outcome != "passed":
            COUNTS[path][report.outcome] += 1


def pytest_terminal_summary(terminalreporter):
    """Print the table: chapter, seconds to start the kernel and to run the cells."""
    if not TIMES:
        return
    write = terminalreporter.write_line
    terminalreporter.section(f"chapters under {current_tab()}")
    width = max(len(path) for path in TIMES)
    write(f"{'chapter':{width}} start s  cells s  passed  failed  skipped")
    for path, times in TIMES.items():
        counts, seconds = COUNTS[path], times["call"]
        write(
            f"{path:{width}} {times['setup']:7.1f}  {seconds:7.1f}  "
            f"{counts['passed']:6}  {counts['failed']:6}  {counts['skipped']:7}"
            + (f"  over {SLOW:g} s" if seconds > SLOW else "")
        )
