"""Execute chapters on every backend and store what they print: one text, three runs.

    python tools/execute.py chapters/data_parallel.ipynb    # default: all chapters
    python tools/execute.py --check                         # compare, write nothing
    python tools/execute.py --backend torch CHAPTER         # one backend, write nothing

A tab cell keeps its own backend's output; a common cell must print the same under all.
A chapter that asks for no framework runs once. One that breaks a rule is not written.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import functools
import importlib.util
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import notebook_file
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager
from notebook_rules import (
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


@dataclass
class Run:
    """What one backend printed: outputs and seconds per code cell that ran."""

    outputs: dict[int, list[NotebookNode]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run_cells(
    nb: NotebookNode, folder: Path, env: dict[str, str], timeout: float, **hooks: object
) -> str:
    """Execute a notebook in a fresh kernel of this Python; return what stopped it."""
    client = NotebookClient(
        nb,
        # Whatever kernel is called python3 on this machine: run this very Python.
        km=AsyncKernelManager(
            kernel_name=CURRENT_ENV_KERNEL_NAME,
            kernel_spec_manager=NbvalKernelspecManager(),
        ),
        timeout=timeout,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
        **hooks,
    )
    with open(os.devnull, "w") as nowhere:  # the kernel's own log, not the cells'
        try:
            client.execute(env=env, stderr=nowhere)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            return str(error)
    return ""


def count_gpus(backend: str) -> int:
    """Count the GPUs that a framework can use, asked in a process of its own.

    Raises CalledProcessError when the framework cannot be imported.
    """
    code = "import sys, d2lmulti as d; print(d.get_backend(sys.argv[1]).gpu_count())"
    done = subprocess.run(
        [sys.executable, "-c", code, backend],
        env=kernel_environment(backend, str(ROOT)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return int(done.stdout.split()[-1])


def run(nb: NotebookNode, backend: str, folder: Path, timeout: float) -> Run:
    """Execute a copy of the notebook in a fresh kernel under one backend."""
    nb, done, started = copy.deepcopy(nb), Run(), {}
    cells = code_cells(nb)
    number = {id(cell): n for n, cell in enumerate(cells)}
    gpus = functools.cache(lambda: count_gpus(backend))
    for n, cell in enumerate(cells):
        cell.outputs = []
        if asked_by(cell).skipped(backend, gpus) is None:
            done.outputs[n] = cell.outputs
        else:
            cell.source = ""  # nbclient runs no empty cell

    def start(cell: NotebookNode, cell_index: int) -> None:
        started[number[id(cell)]] = time.monotonic()

    def end(cell: NotebookNode, cell_index: int, execute_reply: object) -> None:
        n = number[id(cell)]
        done.seconds[n] = time.monotonic() - started[n]

    env = kernel_environment(backend, str(ROOT))
    hooks = {"on_cell_execute": start, "on_cell_executed": end}
    if stopped := run_cells(nb, folder, env, timeout, **hooks):
        at = max(started, default=None)
        where = f"In [{at + 1}]" if at is not None else "start"
        done.problems.append(f"{backend}, {where}: {stopped}")
    for n in done.outputs:
        done.outputs[n] = notebook_file.tidy_outputs(cells[n].outputs)
        for output in done.outputs[n]:
            if output.output_type == "stream" and output.name == "stderr":
                done.problems.append(f"{backend}, In [{n + 1}] stderr: {output.text}")
    return done


def differences(nb: NotebookNode, runs: dict[str, Run]) -> list[str]:
    """Describe every common cell that did not print the same under all backends."""
    found = []
    first, *others = runs
    for n, cell in enumerate(code_cells(nb)):
        if asked_by(cell).tab is not None or "nbval-ignore-output" in tags_of(cell):
            continue
        for other in others:
            if n not in runs[first].outputs or n not in runs[other].outputs:
                continue  # needs GPUs that one of the two does not find
            one = text_of(runs[first].outputs[n])
            two = text_of(runs[other].outputs[n])
            if one != two:
                found.append(
                    f"In [{n + 1}] is common, but prints different characters:\n"
                    + diff(one, two, first, other)
                )
    return found


def text_of(outputs: list[NotebookNode]) -> str:
    """Join all characters that a cell prints; an image is a placeholder."""
    return "".join(map(printed, outputs))


def diff(one: str, two: str, name_one: str, name_two: str) -> str:
    """Show where two texts differ, line by line."""
    lines = difflib.unified_diff(
        one.splitlines(), two.splitlines(), name_one, name_two, lineterm="", n=1
    )
    return "\n".join(f"    {line}" for line in lines)


def merged(nb: NotebookNode, runs: dict[str, Run]) -> NotebookNode:
    """Return the notebook with each cell's outputs from the run they belong to."""
    new = copy.deepcopy(nb)
    first = next(iter(runs))
    for n, cell in enumerate(code_cells(new)):
        outputs = runs[asked_by(cell).tab or first].outputs.get(n)
        if outputs is None:  # it needs GPUs that are not here
            if cell.outputs:
                cell.execution_count = n + 1
            continue
        cell.outputs = notebook_file.keep_equal_images(cell.outputs, outputs)
        cell.execution_count = n + 1
    return notebook_file.normal(new)


def execute(path: Path, backends: list[str], write: bool, timeout: float) -> list[str]:
    """Run one chapter, report on it, write it if all is well; return the problems."""
    nb = notebook_file.read(path)
    if problems := source_rules(nb):
        return problems
    needed = {asked_by(cell).needs for cell in code_cells(nb)} - {None}
    if absent := sorted(m for m in needed if not is_installed(m)):
        return [f"needs {', '.join(absent)} for its outputs; install requirements.txt"]
    whole, runs = set(backends) == set(TABS), {}
    for backend in backends[:1] if asks_for_no_framework(nb) else backends:
        begin = time.monotonic()
        runs[backend] = done = run(nb, backend, path.parent, timeout)
        total = sum(done.seconds.values())
        slowest = max(done.seconds, key=done.seconds.__getitem__, default=0)
        print(
            f"{path.name}  {backend:7}{total:6.1f} s in cells, "
            f"{time.monotonic() - begin - total:.1f} s to start; slowest In "
            f"[{slowest + 1}] {done.seconds.get(slowest, 0):.1f} s"
            + (f"  OVER {SLOW:g} s" if total > SLOW else ""),
            flush=True,
        )
        if done.problems:
            return done.problems
    problems = differences(nb, runs)
    if whole:
        new = merged(nb, runs)
        problems += output_rules(new)
    if problems:
        return problems
    if write:
        changed = notebook_file.write(path, new)
        print(f"{path.name}  {'written' if changed else 'unchanged'}")
        return []
    return stale(nb, runs)


def stale(nb: NotebookNode, runs: dict[str, Run]) -> list[str]:
    """Describe every cell whose stored characters are not those of the runs."""
    found = []
    for n, cell in enumerate(code_cells(nb)):
        ours = runs.get(asked_by(cell).tab or next(iter(runs)))
        if ours is None or n not in ours.outputs:
            continue
        if cell.execution_count is None:
            found.append(f"In [{n + 1}] was never executed")
        elif "nbval-ignore-output" not in tags_of(cell):
            one = text_of(notebook_file.tidy_outputs(cell.outputs))
            two = text_of(ours.outputs[n])
            if one != two:
                changes = diff(one, two, "stored", "now")
                found.append(f"In [{n + 1}] stores something else:\n{changes}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return 1 if any chapter has a problem."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="*", type=Path, metavar="CHAPTER")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--backend", choices=[*TABS], help="run this one only; writes nothing"
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds a cell")
    options = parser.parse_args(argv)
    backends = [options.backend] if options.backend else [*TABS]
    for name in backends:
        if importlib.util.find_spec(name) is None:
            parser.error(
                f"expected {name} to be installed, since a chapter is stored with the "
                "outputs of all backends; install requirements.txt, or try the chapter "
                "with --backend torch, which writes nothing"
            )
    chapters = options.chapters or sorted((ROOT / "chapters").glob("*.ipynb"))
    failed = 0
    for path in chapters:
        problems = execute(
            path, backends, not (options.check or options.backend), options.timeout
        )
        for problem in problems:
            print(f"{path.name}  {problem}", file=sys.stderr)
        if problems:
            failed += 1
            print(
                f"{path.name}  NOT WRITTEN, {len(problems)} problem(s)", file=sys.stderr
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
