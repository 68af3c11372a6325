"""Start a chapter: a notebook with the headings that every chapter has.

    python tools/new_chapter.py allreduce "Five ways to all-reduce"

Writes chapters/allreduce.ipynb and never overwrites. What is in capitals is to be
replaced; the chapter's tests fail until its cells were run by tools/execute.py.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

CHAPTERS = pathlib.Path(__file__).resolve().parent.parent / "chapters"

OPENING = """\
({name})=
# {title}

After this chapter you will be able to

- DO THE FIRST THING,
- DO THE SECOND THING,
- DO THE THIRD THING.

Time to run: SECONDS on two cores, without a GPU. Builds on {{doc}}`data_parallel`."""

SECTIONS = (
    "## A QUESTION WITH A NUMBER IN IT\n\nONE CONCRETE CASE.",
    "## The naive version\n\nSEE IT WORK, THEN MEASURE IT.",
    "## The better one\n\nWHY, THEN HOW; EQUAL TO THE NAIVE ONE.",
    "## Summary\n\n- WHAT TO REMEMBER.",
)

EXERCISE = """\
## Exercises

```{{exercise}}
:label: ex-{name}-1

A QUESTION.
```"""

SOLUTION_START = """\
```{{solution-start}} ex-{name}-1
:class: dropdown
```"""

SOLUTION_END = """\
```{solution-end}
```"""

NEXT = "## Where next\n\nTHE CHAPTER THAT BUILDS ON THIS ONE."

FIRST_CELL = """\
%load_ext d2lmulti_book.notebook
import d2lmulti as d

B = d.get_backend()  # chosen by D2LMULTI_BACKEND
devices = d.devices(2)"""


def chapter(name: str, title: str) -> nbformat.NotebookNode:
    """Build the skeleton of a chapter; a code cell follows each section."""
    cells = [new_markdown_cell(OPENING.format(name=name, title=title))]
    cells.append(new_code_cell(FIRST_CELL))
    for section in SECTIONS[:-1]:
        cells += [new_markdown_cell(section), new_code_cell("...")]
    cells.append(new_markdown_cell(SECTIONS[-1]))
    cells.append(new_markdown_cell(EXERCISE.format(name=name)))
    cells.append(new_markdown_cell(SOLUTION_START.format(name=name)))
    cells += [new_code_cell("..."), new_markdown_cell(SOLUTION_END)]
    cells.append(new_markdown_cell(NEXT))
    for number, cell in enumerate(cells):
        cell.id = f"{name}-{number}".replace("_", "-")[-64:]  # the same every time
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def main(arguments: list[str] | None = None) -> int:
    """Write the notebook; return 1 when its name will not do or is taken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", help="file name without .ipynb, such as allreduce")
    parser.add_argument("title", help="the one heading of first level")
    parser.add_argument("--folder", type=pathlib.Path, default=CHAPTERS)
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", options.name):
        print(f"expected a name like layer_parallel, got {options.name!r}")
        return 1
    path = options.folder / f"{options.name}.ipynb"
    if path.exists():
        print(f"{path} is there already; choose another name or delete it first")
        return 1
    nbformat.write(chapter(options.name, options.title), path)
    print(
        f"Wrote {path}. Next: add chapters/{options.name} to _toc.yml, write, then run "
        f"python tools/execute.py {path}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
