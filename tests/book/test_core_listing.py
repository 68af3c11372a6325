"""The README and the page name the core as it is."""

import nbformat
from book.notebooks import ROOT
from core import core_files, core_listing


def test_the_readme_lists_the_core_with_its_lines():
    listing = f"```\n{core_listing()}\n```"
    text = (ROOT / "README.md").read_text("utf-8")
    assert listing in text, f"README.md: expected this list of the core:\n{listing}"


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
