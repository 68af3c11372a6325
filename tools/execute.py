"""Execute chapters on every backend and store what they print: one text, three runs.

    python tools/execute.py chapters/data_parallel.ipynb    # default: all chapters

A tab cell keeps its own backend's output; a common cell must print the same under all.
A chapter that asks for no framework runs once. One that breaks a rule is not written.
"""

from __future__ import annotations

import copy
import difflib
import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager
from notebook_rules import (
    METADATA,
    asked_by,
    asks_for_no_framework,
    code_cells,
    output_rules,
    printed,
    source_rules,
    tags_of,
)

from d2lmulti_book.notebook import TABS, is_installed, kernel_environment

ROOT = Path(__file__).resolve().parent.parent
SLOW = 15.0  # seconds a chapter may take under one backend
SECONDS = 120  # for a cell
Outputs = dict[int, list[NotebookNode]]  # of the code cells that ran, by their number


class Failed(Exception):
    """A chapter did not run as it should; the message is for its author."""


def count_gpus(backend: str) -> int:
    """Count the GPUs that a framework can use, asked in a process of its own."""
    code = "import sys, d2lmulti as d; print(d.get_backend(sys.argv[1]).gpu_count())"
    command = [sys.executable, "-c", code, backend]
    environment = kernel_environment(backend, str(ROOT))
    return int(subprocess.check_output(command, env=environment).split()[-1])


def run(nb: NotebookNode, backend: str, folder: Path) -> Outputs:
    """Execute a copy of a notebook in a fresh kernel; raises Failed."""
    nb = copy.deepcopy(nb)
    cells = code_cells(nb)
    gpus = functools.cache(lambda: count_gpus(backend))
    ran = [n for n, c in enumerate(cells) if asked_by(c).skipped(backend, gpus) is None]
    for n, cell in enumerate(cells):
        cell.outputs, cell.execution_count = [], None
        if n not in ran:
            cell.source = ""  # nbclient runs no empty cell
    client = NotebookClient(
        nb,
        # Whatever kernel is called python3 on this machine: run this very Python.
        km=AsyncKernelManager(
            kernel_name=CURRENT_ENV_KERNEL_NAME,
            kernel_spec_manager=NbvalKernelspecManager(),
        ),
        timeout=SECONDS,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    began = time.monotonic()
    with open(os.devnull, "w") as nowhere:  # the kernel's own log, not the cells'
        try:
            client.execute(env=kernel_environment(backend, str(ROOT)), stderr=nowhere)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            done = sum(cell.execution_count is not None for cell in cells)
            raise Failed(f"{backend}, after {done} cells: {error}") from None
    took = time.monotonic() - began
    over = f"  OVER {SLOW:g} s" if took > SLOW else ""
    print(f"  {backend:7}{took:6.1f} s{over}", flush=True)
    outputs = {n: tidy(cells[n].outputs) for n in ran}
    for n, shown in outputs.items():
        for output in shown:
            if output.get("name") == "stderr":
                raise Failed(f"{backend}, In [{n + 1}] stderr: {output.text}")
    return outputs


def tidy(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighboring pieces of a stream; reduce a traceback to its last line."""
    found: list[NotebookNode] = []
    for output in copy.deepcopy(outputs):
        if output.output_type == "error":  # the rest shows paths of this machine
            output.traceback = [f"{output.ename}: {output.evalue}"]
        if output.output_type == "stream" and found:
            if found[-1].get("name") == output.name:
                found[-1].text += output.text
                continue
        found.append(output)
    return found


def difference(one: list[NotebookNode], two: list[NotebookNode]) -> str:
    """Show line by line where two outputs print different characters."""
    texts = ["".join(map(printed, outputs)).splitlines() for outputs in (one, two)]
    return "\n".join([*difflib.unified_diff(*texts, lineterm="", n=1)][2:])


def compare(nb: NotebookNode, runs: dict[str, Outputs]) -> list[str]:
    """Describe each cell that prints differently under two backends."""
    found = []
    first, *others = runs
    for n, cell in enumerate(code_cells(nb)):
        ours = runs[first].get(n)
        if "nbval-ignore-output" in tags_of(cell) or asked_by(cell).tab or ours is None:
            continue  # None: it needs GPUs that are not here
        for other in others:
            if changes := difference(ours, runs[other].get(n, ours)):
                found.append(f"In [{n + 1}], - {first}, + {other}:\n{changes}")
    return found


def merged(nb: NotebookNode, runs: dict[str, Outputs]) -> NotebookNode:
    """Return the notebook with each cell's outputs from the run they belong to.

    Nothing in it says when, where and by whom it was run.
    """
    new = copy.deepcopy(nb)
    for n, cell in enumerate(code_cells(new)):
        outputs = runs[asked_by(cell).tab or next(iter(runs))].get(n)
        if outputs is not None:  # else it needs GPUs that are not here
            cell.outputs = outputs
        if outputs is not None or cell.outputs:
            cell.execution_count = n + 1
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = n + 1
    kept = {k: v for k, v in nb.metadata.items() if k in ("mystnb", "myst")}
    new.metadata = nbformat.from_dict(kept | METADATA)
    for cell in new.cells:  # other metadata is traces of editors
        kept = {k: v for k, v in cell.metadata.items() if k in ("tags", "mystnb") and v}
        cell.metadata = nbformat.from_dict(kept)
    return new


def execute(path: Path) -> None:
    """Run one chapter, and write it if all is well; raises Failed."""
    nb = nbformat.read(path, as_version=4)
    if problems := source_rules(nb):
        raise Failed("\n".join(problems))
    for needed in {*TABS, *(asked_by(cell).needs for cell in code_cells(nb))}:
        if needed and not is_installed(needed):
            raise Failed(f"needs {needed} for its outputs; install requirements.txt")
    print(path.name, flush=True)
    backends = [*TABS][: 1 if asks_for_no_framework(nb) else len(TABS)]
    runs = {backend: run(nb, backend, path.parent) for backend in backends}
    new = merged(nb, runs)
    if problems := [*compare(nb, runs), *output_rules(new)]:
        raise Failed("\n".join(problems))
    path.write_text(nbformat.writes(new, version=4) + "\n", encoding="utf-8")


def main() -> int:
    """Run the chapters that are named; return 1 if any has a problem."""
    failed = 0
    for path in map(Path, sys.argv[1:] or sorted((ROOT / "chapters").glob("*.ipynb"))):
        try:
            execute(path)
        except Failed as error:
            print(f"{path.name}  PROBLEM, nothing written:\n{error}", file=sys.stderr)
            failed += 1
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
