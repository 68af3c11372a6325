"""Run the notebooks of `make notebooks` as a reader does: `make test-take-away`.

    python tools/run_take_away.py [--only setup horovod] torch mxnet paddle
    python tools/run_take_away.py --newer python3.13 torch   # requirements-torch.lock

For each framework, a new environment outside the repository holds that framework, pip
and Jupyter's kernel, at the versions of the lock. The first notebook installs the wheel
into it; what the wheel depends on is there already, because uv installs it faster than
pip. All run from top to bottom, in a folder that holds only notebooks and wheel.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import tomllib
from setup_venv import uv_environment
from take_away import OUT, ROOT

PACKAGES = {"torch": "torch", "mxnet": "mxnet", "paddle": "paddlepaddle"}
JUPYTER = ("ipykernel", "nbclient", "pip")


class Failed(Exception):
    """A command that failed, with the end of what it wrote."""


def run(env: dict[str, str], folder: Path, *command: str | Path) -> None:
    """Run a command in a folder; raises Failed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=env, cwd=folder, **pipes)
    if done.returncode:
        raise Failed(done.stdout[-3000:])


def outside(folder: Path, pins: Path) -> dict[str, str]:
    """Return an environment that knows the repository no more, only the pins."""
    dropped = re.compile(r"D2LMULTI_|BOOK_|PYTHON|VIRTUAL_ENV|JUPYTER|IPYTHON|MPL")
    env = {k: v for k, v in os.environ.items() if not dropped.match(k)}
    path = os.pathsep.join([str(folder / "venv" / "bin"), os.environ["PATH"]])
    return {"OMP_NUM_THREADS": "1"} | env | {
        "PATH": path,
        "PIP_CONSTRAINT": str(pins),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "IPYTHONDIR": str(folder / "ipython"),
    }  # fmt: skip


def make_environment(folder: Path, framework: str, python: str, lock: Path) -> dict:
    """Make the environment in a folder, and see that it lacks the library."""
    pins = folder / "pins.txt"
    lines = lock.read_text(encoding="utf-8").splitlines()
    pinned = [line.removesuffix("\\") for line in lines if re.match(r"\w", line)]
    pins.write_text("\n".join(pinned) + "\n", encoding="utf-8")
    env = outside(folder, pins)
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    uv_env = uv_environment(listed, env) | {"UV_CONSTRAINT": str(pins)}
    uv = [sys.executable, "-m", "uv"]
    run(uv_env, folder, *uv, "venv", "--quiet", "--python", python, folder / "venv")
    own = folder / "venv" / "bin" / "python"
    install = [*uv, "pip", "install", "--quiet", "--python", own]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    required = project["project"]["dependencies"]
    run(uv_env, folder, *install, PACKAGES[framework], *JUPYTER, *required)
    absent = "import importlib.util as i, sys; sys.exit(bool(i.find_spec('d2lmulti')))"
    run(env, folder, own, "-c", absent)
    return env


def run_all(framework: str, python: str, lock: Path, only: list[str]) -> int:
    """Run the notebooks of one framework, and return how many failed."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix=f"take-away-{framework}-") as name:
        folder = Path(name)
        env = make_environment(folder, framework, python, lock)
        own = folder / "venv" / "bin" / "python"
        notebooks = folder / "notebooks"
        shutil.copytree(OUT / framework, notebooks)
        for wheel in OUT.glob("*.whl"):
            shutil.copy(wheel, notebooks)
        paths = [p for p in notebooks.glob("*.ipynb") if not only or p.stem in only]
        # What installs another framework comes last.
        paths.sort(key=lambda path: (installs_more(path), path.stem))
        for path in paths:
            began = time.monotonic()
            command = ["-m", "jupyter", "execute", "--inplace", "--timeout", "300"]
            try:
                run(env, folder, own, *command, path)
                words = "passed"
            except Failed as error:
                failed += 1
                words = f"FAILED\n{error}"
            took = time.monotonic() - began
            print(f"{framework:7} {path.stem:20} {took:4.0f} s  {words}", flush=True)
    print(f"{framework}: {len(paths) - failed} of {len(paths)} notebooks passed")
    return failed


def installs_more(path: Path) -> bool:
    """Tell whether a notebook's first code cell installs more than the wheel."""
    cells = nbformat.read(path, as_version=4).cells
    first = next(cell for cell in cells if cell.cell_type == "code")
    return "package =" in first.source


def main() -> int:
    """Run the command line; return 1 if any notebook failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("frameworks", nargs="+", choices=PACKAGES)
    parser.add_argument("--newer", metavar="PYTHON", help="this, and the other lock")
    parser.add_argument("--only", nargs="+", default=[], metavar="CHAPTER")
    options = parser.parse_intermixed_args()
    lock = ROOT / f"requirements{'-torch' * bool(options.newer)}.lock"
    arguments = (options.newer or sys.executable, lock, options.only)
    with ThreadPoolExecutor(len(options.frameworks)) as pool:
        results = [pool.submit(run_all, f, *arguments) for f in options.frameworks]
    return any([result.result() for result in results])


if __name__ == "__main__":
    sys.exit(main())
