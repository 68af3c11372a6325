"""The command `python -m d2lmulti gym`: list, start, hint, grade, show the solution."""

from __future__ import annotations

import difflib
import json
import os
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from d2lmulti.errors import InvalidInput
from d2lmulti.files import check_output, progress, write_atomically, write_json

from .faults import FAULTS, Fault, find
from .grading import SEEDS, Grade, Outcome, Results, compare, correct, judge, run

WIDTH = 76
FOLDER = Path("gym")  # of a learner's copies, below the current folder


def score_file() -> Path:
    """Return the file of a user's score: D2LMULTI_GYM, or one in the user's folder."""
    default = Path(click.get_app_dir("d2lmulti"), "gym.json")
    return Path(os.environ.get("D2LMULTI_GYM") or default)


def read_scores() -> dict[str, dict[str, Any]]:
    """Read what a user has done, by the names of the faults."""
    path = score_file()
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        hint = "move it away to begin again"
        raise InvalidInput(f"expected a score file in JSON at {path}; {hint}") from None


def note(fault: Fault, **news: Any) -> None:
    """Write to the score file what a user has done with a fault."""
    scores = read_scores()
    scores[fault.name] = scores.get(fault.name, {}) | news
    score_file().parent.mkdir(parents=True, exist_ok=True)
    write_json(score_file(), scores)


def points(score: dict[str, Any]) -> int:
    """Return 4 points for a solved fault, less one per hint; 0 if it was shown."""
    shown = score.get("solution", False)
    return 0 if shown or not score.get("solved") else 4 - score.get("hints", 0)


def choose_backend(fault: Fault, backend: str | None) -> str:
    """Return the backend that is asked for, the usual one, or one that there is."""
    usual = os.environ.get("D2LMULTI_BACKEND") or "torch"
    there = fault.backends()
    return backend or (usual if usual in there else there[0])


@click.group(invoke_without_command=True)
@click.pass_context
def gym(context: click.Context) -> None:
    """Repair faulty programs. WHAT is a program's number or name."""
    if context.invoked_subcommand is None:
        context.invoke(show_list)


what_argument = click.argument("what")
backend_option = click.option(
    "--backend", help="Of the program: numpy, torch, mxnet, or paddle."
)


@gym.command("list")
def show_list() -> None:
    """List the programs and your points.

    Below a program that is solved stands what was wrong with it.
    """
    scores = read_scores()
    header, *rows = table_of_faults(scores)
    click.echo(header)
    for fault, row in zip(FAULTS, rows, strict=True):
        click.echo(row)
        if scores.get(fault.name, {}).get("solved"):
            click.echo(f"{'':12}{fault.fault}")
    total = sum(points(score) for score in scores.values())
    click.echo(f"points: {total} of {4 * len(FAULTS)}")
    if not scores:
        click.echo("begin with: python -m d2lmulti gym start 1")


def table_of_faults(scores: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the table: with colors in a terminal, else plain text."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("", width=2, justify="right", no_wrap=True)
    for name, width in (("level", 6), ("program", 40), ("backends", 10), ("points", 6)):
        table.add_column(name, width=width, no_wrap=True)
    colors = {"easy": "green", "medium": "yellow", "hard": "red"}
    for fault in FAULTS:
        score = scores.get(fault.name, {})
        backends = "all" if len(fault.backends()) > 1 else fault.backends()[0]
        earned = f"{points(score)} of 4" if score else ""
        level = Text(fault.level, colors[fault.level])
        cells = (fault.title, backends, earned)
        table.add_row(str(fault.number), level, *map(Text, cells))
    # A page shows text, as a file does: Jupyter sets FORCE_COLOR, and rich makes HTML.
    terminal = sys.stdout.isatty()
    console = Console(width=80, force_jupyter=False, force_terminal=terminal)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


@gym.command("hint")
@what_argument
def show_hint(what: str) -> None:
    """Print one hint more; each costs one of four points."""
    fault = find(what)
    count = min(read_scores().get(fault.name, {}).get("hints", 0) + 1, 3)
    note(fault, hints=count)
    for number, hint in enumerate(fault.hints[:count], start=1):
        click.echo(textwrap.fill(f"hint {number} of 3: {hint}", WIDTH))


@gym.command("solution")
@what_argument
@backend_option
def show_solution(what: str, backend: str | None) -> None:
    """Print what is wrong, and the repair as a diff.

    A program whose solution was shown before it was solved gives no points.
    """
    fault = find(what)
    if not read_scores().get(fault.name, {}).get("solved"):
        note(fault, solution=True)  # who has solved it, keeps the points
    click.echo(f"{fault.fault} (chapter {fault.chapter})\n")
    backend = choose_backend(fault, backend)
    texts = fault.program(backend), fault.program(backend, fault.fix)
    old, new = (text.splitlines() for text in texts)
    for line in difflib.unified_diff(
        old, new, fault.file_name, fault.file_name, n=1, lineterm=""
    ):
        click.echo(line)


def show_symptom(fault: Fault, backend: str) -> None:
    """Run the program and the correct one over five seeds, and print what differs."""
    click.echo(f"{fault.number}. {fault.title} ({fault.level})")
    click.echo(textwrap.fill(fault.task, WIDTH) + "\n")
    cases = SEEDS if fault.trains else SEEDS[:1]
    with progress(2, "program", "running both over five seeds") as bar:
        with ThreadPoolExecutor() as pool:
            right = pool.submit(correct, fault, cases)
            outcome = run(fault.program(backend), fault.limit, cases)
            bar.update(1)
            expected = right.result()
        bar.update(1)
    for line in symptom(outcome, expected):
        click.echo(line)


def symptom(outcome: Outcome, expected: Results) -> Iterator[str]:
    """Yield the lines of the table that compares a program with the correct one."""
    if outcome.verdict != "ran":
        yield f"the program {outcome.verdict}:"
        yield from outcome.output.strip().splitlines()[-24:]
        return
    pairs = (("correct", expected), ("this one", outcome.results))
    for name, results in pairs:
        cells = [f"{name:9}"]
        found = [results[p] for s in SEEDS if (p := f"{s}/accuracy") in results]
        if found:
            cells.append(f"accuracy {min(found):.3f} to {max(found):.3f}")
        for key, unit, digits in (("losses", 1, 3), ("seconds", 1000, 2)):
            values = [v for p, v in results.items() if p.startswith(f"0/{key}/")]
            if values:
                label = {"losses": "loss", "seconds": "ms"}[key]
                shown = (f"{unit * value:.{digits}f}" for value in values[:6])
                cells.append(f"{label} {' '.join(shown)}")
        yield "  ".join(cells)
    off = [
        np.abs(outcome.results[place] - value).max() / np.abs(value).max()
        for place, value in expected.items()
        if "/weights/" in place
    ]
    if off and max(off) == 0:
        yield "weights: no difference"
    elif off:
        yield f"weights: off by up to {max(off):.1e} of the largest in their tensor"
    elif not compare(outcome.results, expected):
        yield "no difference"


@gym.command()
@what_argument
@backend_option
def start(what: str, backend: str | None) -> None:
    """Copy a program to the folder gym, and show what is wrong."""
    fault = find(what)
    chosen = choose_backend(fault, backend)
    text, target = fault.program(chosen), FOLDER / fault.file_name
    if target.exists():
        raise InvalidInput(
            f"expected no file {target}; grade it, or move it away to begin again"
        )
    FOLDER.mkdir(exist_ok=True)
    write_atomically(check_output(target), text.encode())
    show_symptom(fault, chosen)
    click.echo(f"\nedit {target}, then: python -m d2lmulti gym grade {fault.number}")


def files_of(what: str) -> list[tuple[Path, Fault]]:
    """Return the files that a number, a file or a folder means, each with its fault."""
    path = Path(what)
    if path.is_dir():
        names = {fault.file_name: fault for fault in FAULTS}
        found = sorted(p for p in path.rglob("*.py") if p.name in names and p.is_file())
        if not found:
            words = (
                f"expected files such as {FAULTS[0].file_name} in {path}, found none"
            )
            raise InvalidInput(words)
        return [(p, names[p.name]) for p in found]
    if path.suffix == ".py" and not path.is_file():
        raise InvalidInput(f"expected a file {path}; `gym start` makes one")
    fault = find(what)
    path = path if path.suffix == ".py" else FOLDER / fault.file_name
    if not path.is_file():
        hint = f"`gym start {fault.number}` makes one"
        raise InvalidInput(f"expected a file {path}; {hint}")
    return [(path, fault)]


@gym.command()
@what_argument
@click.option("--json", "as_json", is_flag=True, help="Print the grades as JSON.")
def grade(what: str, as_json: bool) -> int:
    """Grade your repair: a number, a file, or a folder of files.

    Ends with exit code 0 if every file is right, with 1 if one is not, and with 2 if
    there is nothing to grade.
    """
    files, references = files_of(what), dict[str, Future[Results]]()
    grades: list[tuple[Path, Fault, Grade]] = []
    with ThreadPoolExecutor(1) as pool, progress(len(files), "file", "grading") as bar:
        for path, fault in files:
            if fault.name not in references:
                references[fault.name] = pool.submit(correct, fault)
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
                outcome = run(text, fault.limit)
            except OSError as error:
                outcome = Outcome("crashed", output=f"it cannot be read: {error}")
            expected = references[fault.name].result()
            grades.append((path, fault, judge(outcome, expected)))
            bar.update(1)
    if as_json:
        rows = [
            {
                "file": str(path),
                "number": fault.number,
                "verdict": found.verdict,
                "lines": list(found.lines),
            }
            for path, fault, found in grades
        ]
        click.echo(json.dumps(rows, indent=2))
    for path, fault, found in () if as_json else grades:
        click.echo(f"{path}: {found.verdict}")
        for line in found.lines:
            click.echo(f"  {line}")
        if len(grades) == 1 and found.verdict == "right":
            click.echo(textwrap.indent(textwrap.fill(fault.fault, WIDTH), "  "))
            click.echo(f"  See the chapter {fault.chapter}.")
    if not Path(what).is_dir():  # a class's files are not the teacher's
        ((_, fault, found),) = grades
        attempts = read_scores().get(fault.name, {}).get("attempts", 0) + 1
        solved = {"solved": True} if found.verdict == "right" else {}
        note(fault, attempts=attempts, **solved)
    return int(any(found.verdict != "right" for _, _, found in grades))
