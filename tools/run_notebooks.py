"""Run `pytest --nbval chapters` once per backend, each in a process of its own.

    python tools/run_notebooks.py torch mxnet paddle -- -n 2 --dist loadfile
    D2LMULTI_POSED=8 python tools/run_notebooks.py torch     # the CPU poses as 8 GPUs

A chapter that asks for no framework runs under the first backend alone. The arguments
after `--` are pytest's. Ends with 1 when a backend fails or finds no notebook.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import nbformat
from notebook_rules import asks_for_no_framework

ROOT = pathlib.Path(__file__).resolve().parent.parent


def posing(gpus: str) -> dict[str, str]:
    """Return the environment in which PyTorch's CPU poses as GPUs (tests/posed)."""
    path = [str(ROOT / "tests" / "posed"), str(ROOT), os.getenv("PYTHONPATH")]
    return {"D2LMULTI_POSED": gpus, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def main(arguments: list[str]) -> int:
    """Run all backends, name those that failed, return 0 only when every one passed."""
    middle = [*arguments, "--"].index("--")
    backends, more = arguments[:middle], arguments[middle + 1 :]
    chapters = sorted((ROOT / "chapters").glob("*.ipynb"))
    alike = [p for p in chapters if asks_for_no_framework(nbformat.read(p, 4))]
    failed = []
    for backend in backends:
        print(f"\n== notebooks under {backend}", flush=True)
        environment = os.environ | {
            "D2LMULTI_BACKEND": backend,
            "D2LMULTI_QUIET": "1",  # no progress bars: nbval compares stderr
        }
        if gpus := os.environ.get("D2LMULTI_POSED"):
            environment |= posing(gpus)
        # Cells write no cache; with one, two backends would overwrite each other's.
        command = [sys.executable, "-m", "pytest", "-q", "--nbval", "chapters"]
        command += ["-p", "no:cacheprovider", *more]
        if backend != backends[0]:
            command += [f"--ignore={path.relative_to(ROOT)}" for path in alike]
        if status := subprocess.call(command, cwd=ROOT, env=environment):
            failed.append(f"FAILED under {backend}: pytest ended with {status}")
    print("\n".join(failed))  # the last: the end of a log is what one sees first
    return bool(failed) or not backends


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
