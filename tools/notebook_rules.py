"""The rules that every chapter keeps, as functions from a notebook to complaints.

`source_rules` looks at what an author wrote, `output_rules` at what a run left behind.
tools/execute.py refuses to write a notebook that breaks one, and a test looks at every
committed chapter. A complaint names the cell by its number in Jupyter, `In [n]`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from nbformat import NotebookNode

from d2lmulti_book.notebook import WITHOUT, Asked, split_cell

# Of a page, as one reader sees it, with one framework and the solutions folded.
MAX_CELLS, MAX_CODE_LINES, MAX_WORDS = 25, 320, 2600
# Of a cell, of its code, and of what it prints.
MAX_LINES, MAX_COLUMNS, MAX_PRINTED = 25, 70, 79
METADATA = {  # of every notebook: none of it tells where it ran
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
FOLDED = {"hide-input", "remove-input", "hide-cell", "remove-cell"}

# What only a cell that needs a backend says.
_FRAMEWORK = re.compile(r"\bB\.|get_backend|%%tab")

Rules = Callable[[NotebookNode], Iterator[str]]  # of one cell

# What nobody reads as words: options of a directive, addresses, formulas set apart.
_NO_WORDS = re.compile(
    r"^```\{index\}.*?^```$|^:[\w-]+:[^\n]*$|\]\([^)\n]*\)|<[\w/.:#-]+>"
    r"|\$\$.*?\$\$|\$[^$\n]*\$",
    re.M | re.S,
)
# Exercises are practice, and so are their solutions, which are folded.
_EXERCISE = re.compile(r"^(`{3,}|:{3,})\{exercise\}.*?^\1 *$", re.M | re.S)
_PRACTICE = re.compile(r"\{(?:solution|exercise)-(start|end)\}")

# Changes from run to run or from machine to machine, so it can be no stored output.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
_PATH = re.compile(r"(?<![\w.])/(?:home|Users|root|tmp|var/folders)/[\w.-]+")


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    """Return the code cells of a notebook, in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags_of(cell: NotebookNode) -> list[str]:
    """Return the tags of a cell."""
    return list(cell.metadata.get("tags", []))


def asked_by(cell: NotebookNode) -> Asked:
    """Return what the magics on top of a code cell ask for."""
    return split_cell(cell.source)[0]


def asks_for_no_framework(nb: NotebookNode) -> bool:
    """Tell whether a page says, by a tag of its first code cell, that it needs none."""
    return any(WITHOUT in tags_of(cell) for cell in code_cells(nb)[:1])


def words(text: str) -> int:
    """Count the words of a Markdown text."""
    return len(re.findall(r"[^\W_][\w'’-]*", _NO_WORDS.sub(" ", text)))


def measures(nb: NotebookNode) -> tuple[int, int]:
    """Count the words of a page and its lines of visible code, without exercises."""
    prose = code = 0
    practice = False
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text = _EXERCISE.sub(" ", cell.source)
            parts = _PRACTICE.split(text)  # text, start or end, text, ...
            for mark, part in zip(["", *parts[1::2]], parts[::2], strict=True):
                practice = mark == "start" or (practice and mark != "end")
                prose += 0 if practice else words(part)
        elif not practice and not FOLDED & set(tags_of(cell)):
            if asked_by(cell).tab in (None, "torch"):
                code += len(cell.source.splitlines())
    return prose, code


def source_rules(nb: NotebookNode) -> list[str]:
    """Return what is wrong with the text and code of a notebook."""
    return [*_form(nb), *_numbered(nb, _source)]


def output_rules(nb: NotebookNode) -> list[str]:
    """Return what is wrong with the outputs stored in a notebook."""
    names = Counter(_figure(cell).get("name") for cell in code_cells(nb))
    twice = [name for name, count in names.items() if name and count > 1]
    return [
        *(f"more than one figure is called {name!r}" for name in twice),
        *_numbered(nb, _output),
    ]


def _numbered(nb: NotebookNode, rules: Rules) -> Iterator[str]:
    for n, cell in enumerate(code_cells(nb), start=1):
        yield from (f"In [{n}]: {text}" for text in rules(cell))


def _form(nb: NotebookNode) -> Iterator[str]:
    prose = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    prose = re.sub(r"^(```+|:::+).*?^\1", "", prose, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^# .*", prose, flags=re.MULTILINE)
    if len(titles) != 1:
        yield f"expected one title (# ...), found {len(titles)}"
    keys = Counter(asked_by(cell).tab for cell in code_cells(nb))
    most = keys.pop(None, 0) + max(keys.values(), default=0)
    if most > MAX_CELLS:
        yield f"{most} code cells run under one backend; at most {MAX_CELLS}"
    prose, lines = measures(nb)
    if prose > MAX_WORDS:
        yield f"{prose} words without exercises; at most {MAX_WORDS}"
    if lines > MAX_CODE_LINES:
        yield f"{lines} lines of visible code; at most {MAX_CODE_LINES}"
    for n, cell in enumerate(code_cells(nb)[1:], start=2):
        if WITHOUT in tags_of(cell) and _FRAMEWORK.search(cell.source):
            yield f"In [{n}]: tagged {WITHOUT}, but it uses a backend"
    if keys and asks_for_no_framework(nb):
        yield f"a notebook tagged {WITHOUT} has cells of {', '.join(map(str, keys))}"
    if keys and "%load_ext d2lmulti_book.notebook" not in code_cells(nb)[0].source:
        yield (
            "a notebook with tabs must begin its first code cell with "
            "%load_ext d2lmulti_book.notebook"
        )


def _source(cell: NotebookNode) -> Iterator[str]:
    lines = len(cell.source.splitlines())
    if not cell.source.strip():
        yield "the cell is empty; delete it"
    if lines > MAX_LINES:
        yield f"{lines} lines; at most {MAX_LINES}"
    yield from _lines(cell.source, MAX_COLUMNS)
    if wrong := asked_by(cell).wrong():
        yield wrong
    if "nbval-skip" in tags_of(cell) or "NBVAL_SKIP" in cell.source:
        yield "nbval-skip hides the cell from the tests; begin with %%gpu N"


def _lines(text: str, columns: int) -> Iterator[str]:
    """Say which lines of code or of text are too wide for the page, or hold a TAB."""
    for line in text.splitlines():
        if len(line) > columns:
            yield f"{len(line)} columns, at most {columns}: {line[:40]}..."
        if "\t" in line:
            yield f"a TAB, whose width depends on the browser: {line.strip()[:40]}..."


def _output(cell: NotebookNode) -> Iterator[str]:
    if cell.execution_count is None and not asked_by(cell).gpu:
        yield "never executed; run tools/execute.py"
    for output in cell.outputs:
        text, kinds = printed(output), " ".join(output.get("data", {}))
        if output.get("name") == "stderr":
            yield f"wrote to stderr: {text.strip()[:200]}"
        if output.output_type == "error" and "raises-exception" not in tags_of(cell):
            yield f"raised {output.ename}: {output.evalue}"
        if "text/html" not in kinds:
            yield from (f"prints {wide}" for wide in _lines(text, MAX_PRINTED))
        if match := _ADDRESS.search(text):
            yield f"shows an address in memory, which always differs: {match[0]}"
        if match := _PATH.search(text):
            yield f"shows a path of this machine: {match[0]}"
        if "widget-view" in kinds:
            yield "shows a widget, which a page cannot; print text instead"
    figure = _figure(cell)
    alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    shown = [output for output in cell.outputs if "data" in output]
    if any(kind.startswith("image/") for output in shown for kind in output.data):
        for key, value in (
            ("figure.name", figure.get("name")),
            ("figure.caption", figure.get("caption")),
            ("image.alt", alt),
        ):
            if not value:
                yield f"shows an image without mystnb.{key} in the cell's metadata"
        if alt and alt == figure.get("caption"):
            yield "the alt text repeats the caption; say what the picture shows"
    elif figure and cell.execution_count is not None:
        yield f"is to be figure {figure.get('name')!r} but shows no image"
    if figure and len(shown) > 1:
        yield (
            f"shows {len(shown)} things but is one figure; put a `;` after the last "
            "line or draw in a cell of its own"
        )


def _figure(cell: NotebookNode) -> dict[str, str]:
    return dict(cell.metadata.get("mystnb", {}).get("figure", {}))


def printed(output: NotebookNode) -> str:
    """Return the characters that an output shows, and a placeholder for each image."""
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type == "error":
        return f"{output.ename}: {output.evalue}\n"
    parts = []
    for kind, value in sorted(output.data.items()):
        if kind.startswith("image/"):
            parts.append(f"[{kind}]\n")
        else:
            parts.append(value if isinstance(value, str) else repr(value))
    return "".join(part if part.endswith("\n") else part + "\n" for part in parts)
