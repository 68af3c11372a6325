"""Run every chapter from top to bottom, as Jupyter's "Run All" does: `make run-all`.

    python tools/run_all.py chapters/devices.ipynb     # default: all chapters
    python tools/run_all.py --backend torch --backend paddle

No output is compared or stored, and nothing that the tests know of the cells helps:
whatever a reader's machine lacks, the notebook itself must pass over. Ends with 1 when
a cell raises.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

from d2lmulti.notebook import TABS

ROOT = Path(__file__).resolve().parent.parent


def run(path: Path, backend: str) -> str:
    """Run one chapter under one backend; return what is wrong, or nothing."""
    client = NotebookClient(
        nbformat.read(path, as_version=4),
        # Whatever kernel is called python3 on this machine: run this very Python.
        km=AsyncKernelManager(
            kernel_name=CURRENT_ENV_KERNEL_NAME,
            kernel_spec_manager=NbvalKernelspecManager(),
        ),
        timeout=120,
        store_widget_state=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    env["D2LMULTI_BACKEND"] = backend  # all that a reader sets
    with open(os.devnull, "w") as nowhere:  # the kernel's own log, not the cells'
        try:
            client.execute(env=env, stderr=nowhere)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return str(error)
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the chapters under each backend; return 1 if one of them stops."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("chapters", nargs="*", type=Path, metavar="CHAPTER")
    parser.add_argument("--backend", action="append", choices=[*TABS])
    options = parser.parse_args(arguments)
    chapters = options.chapters or sorted((ROOT / "chapters").glob("*.ipynb"))
    installed = [name for name in TABS if importlib.util.find_spec(name)]
    stopped = ran = 0
    for backend in options.backend or installed:
        for path in chapters:
            since = time.monotonic()
            wrong = run(path, backend)
            took = time.monotonic() - since
            print(f"{backend:7}{path.name:24}{took:6.1f} s", flush=True)
            ran, stopped = ran + 1, stopped + bool(wrong)
            if wrong:
                print(f"STOPPED\n{wrong}", file=sys.stderr, flush=True)
    print(f"{ran - stopped} of {ran} notebooks ran from top to bottom")
    return bool(stopped) or not ran


if __name__ == "__main__":
    sys.exit(main())
