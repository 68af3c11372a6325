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
from execute import ROOT, run_cells

from d2lmulti_book.notebook import TABS


def run(path: Path, backend: str) -> str:
    """Run one chapter under one backend; return what is wrong, or nothing."""
    env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    env["D2LMULTI_BACKEND"] = backend  # all that a reader sets
    return run_cells(nbformat.read(path, as_version=4), path.parent, env, timeout=120)


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
