"""The README and the page name the core, and how large it is, as it is."""

import re

import nbformat
import pytest
import sizes
from book.notebooks import ROOT
from core import core_files


def test_the_readme_lists_the_core_and_counts_what_a_step_runs():
    text = (ROOT / "README.md").read_text("utf-8")
    assert "```\n" + "\n".join(core_files()) + "\n```" in text
    told = re.search(
        r"core of\s+(\d+) files and\s+about ([\d,]+) lines.*?PyTorch\s+backend, that "
        r"is about\s+([\d,]+) lines.*?library\s+has\s+about ([\d,]+)", text, re.S
    )  # fmt: skip
    files, *counts = (int(count.replace(",", "")) for count in told.groups())
    assert files == len(core_files())
    assert counts == pytest.approx(list(sizes.what_a_step_runs().values()), rel=0.1)


def test_the_page_reads_the_core_in_its_order():
    page = nbformat.read(ROOT / "chapters" / "read_the_library.ipynb", as_version=4)
    printed = "".join(
        output.text
        for cell in page.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )
    rows = [line.split()[:3] for line in printed.splitlines() if " calls" in line]
    files = [f"d2lmulti/{name}" for name, *_ in rows if name.endswith(".py")]
    assert files[: len(core_files())] == core_files()
