"""Run pytest in a fork of a process that has imported the frameworks, and nothing else.

Most of a short run of pytest is the import of what it needs. That is the same for each
seeded bug, but for the library itself, so one process imports the rest, and a fork of
it runs the tests of each bug. The library is imported in the fork, from the copy.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from pathlib import Path

PRELOADED = ["torch", "hypothesis", "pytest", "sklearn.datasets", "IPython"]
CONTEXT = multiprocessing.get_context("forkserver")


def run_pytest(root: Path, arguments: list[str], seconds: float) -> tuple[int, str]:
    """Run pytest in `root`; return the exit status and all that was printed.

    Raises `TimeoutError` when it has not ended after so many seconds.
    """
    CONTEXT.set_forkserver_preload(PRELOADED)
    printed = root / "printed.txt"
    process = CONTEXT.Process(target=_in_fork, args=(str(root), arguments, printed))
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(printed.read_text("utf-8"))
    return process.exitcode, printed.read_text("utf-8")


def _in_fork(root: str, arguments: list[str], printed: Path) -> None:
    ours = [name for name in sys.modules if name.partition(".")[0] == "d2lmulti"]
    if ours:
        raise RuntimeError(f"expected no part of the library yet, got {ours}")
    file = os.open(printed, os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.chdir(root)
    sys.path.insert(0, root)  # before the installed library
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ |= {
        "PYTHONPATH": root,  # of the processes that the tests start
        "CUDA_VISIBLE_DEVICES": "",  # on simulated devices aliasing shows
        "HYPOTHESIS_PROFILE": "ci",
        "OMP_NUM_THREADS": "1",
    }
    # pytest collects garbage five times in the end: not in what was there before.
    gc.freeze()
    import pytest

    status = pytest.main(arguments)
    import d2lmulti

    if not d2lmulti.__file__.startswith(root):
        raise RuntimeError(f"expected the library of {root}, got {d2lmulti.__file__}")
    sys.exit(status)
