"""The notebooks to take away hold no magic, no role and no link that needs the book."""

import ast
import re
import zipfile
from types import SimpleNamespace

import nbformat
import plain_markdown
import pytest
import take_away
import web_page
from book.notebooks import ROOT, code, text
from nbformat.v4 import new_notebook
from take_away import TABS

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
URL = "https://book.example.org"


@pytest.fixture(scope="module", params=["", URL], ids=["unhosted", "hosted"])
def book(request):
    return plain_markdown.read_book(ROOT / "chapters", request.param)


def prose(source):
    """Leave the code out of a text."""
    source = re.sub(r"^(`{3,}).*?^\1", "", source, flags=re.S | re.M)
    return re.sub(r"(`+).+?\1", "", source, flags=re.S)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("framework", TABS)
def test_every_chapter_is_plain(path, framework, book):
    nb = nbformat.read(path, as_version=4)
    taken = take_away.take_away(nb, path.stem, framework, book)
    nbformat.validate(taken)
    for cell in taken.cells:
        if cell.cell_type == "code":
            ast.parse(cell.source)  # a magic would be a syntax error
            assert not cell.outputs and cell.execution_count is None
            assert "../" not in re.sub(r'Path\("\.\."\)', "", cell.source)
            continue
        # A role ends in a code span, so look before code is left out.
        assert not plain_markdown.ROLE.search(re.sub(r"``.+?``", "", cell.source))
        words = prose(cell.source)
        assert not re.search(r"^([`:~]{3,})\{|^\([\w-]+\)=", words, re.M)
        targets = re.findall(r"\]\(([^)\s]*)\)", words)
        assert all(target.startswith("https://") for target in targets), targets
        assert book.url or not any("example.org" in target for target in targets)
    magics = [c for c in nb.cells if c.cell_type == "code"]
    asked = [take_away.split_cell(c.source)[0].tab for c in magics]
    bare = sum(c.source.strip() == take_away.LOAD for c in magics)
    kept = sum(c.cell_type == "code" for c in taken.cells)
    wanted = sum(tab in (None, framework) for tab in asked)
    assert kept == 1 + wanted - bare
    assert taken.cells[0].source.startswith(f"# {book.titles[path.stem]}\n")


def test_roles_become_words_or_absolute_links(book):
    source = (
        "(here)=\n## Why\n\n{term}`data parallelism` of {doc}`setup`, "
        "{ref}`below <gpu-to-gpu>`; {cite}`goyal2017accurate`, {math}`a+b`, `{x}`"
    )
    words = plain_markdown.plain(source, "setup", book)
    assert words.startswith("## Why\n\n")
    if book.url:
        anchor = "glossary.html#term-data-parallelism"
        assert f"[data parallelism]({URL}/chapters/{anchor})" in words
        assert f"[below]({URL}/chapters/devices.html#gpu-to-gpu)" in words
    else:
        assert words.startswith("## Why\n\ndata parallelism of *")
        assert "below; (Goyal et al., 2017)" in words
    assert words.endswith("$a+b$, `{x}`")


def test_directives_become_quotations_and_code(book):
    source = (
        ":::{admonition} Mind\n:class: warning\nthe {term}`gap <shard>`\n:::\n"
        "```{literalinclude} ../d2lmulti/plans/schedules.py\n"
        ":pyobject: one_f_one_b\n```\n```{index} ! gone\n```\n"
    )
    words = plain_markdown.plain(source, "setup", book)
    assert words.startswith("> **Mind**\n> \n> the ")
    assert "```python\ndef one_f_one_b(" in words and "gone" not in words


@pytest.mark.parametrize("source", ["```{video} x\n```", "{doc}`nowhere`"])
def test_what_has_no_plain_form_is_an_error(book, source):
    with pytest.raises(plain_markdown.NotPlain):
        plain_markdown.plain(source, "setup", book)


def test_tabs_guards_and_captions(book):
    nb = new_notebook(
        cells=[
            text("# Setup\n\nText."),
            code("%load_ext d2lmulti_book.notebook\nimport os"),
            code("%%tab torch\nimport torch"),
            code("%%tab paddle\nimport paddle"),
            text("More."),
            code("%%tab torch\nonly = 'torch'"),
            code("%%gpu 2\nprint(1)"),
            code("%%needs horovod\nx = 1", tags=("hide-input",)),
        ]
    )
    taken = take_away.take_away(nb, "setup", "paddle", book)
    sources = [cell.source for cell in taken.cells]
    assert sources[2:6] == ["Text.", "import os", "import paddle", "More."]
    assert sources[6] == "*Here the book has a cell for PyTorch alone.*"
    assert "gpu_count() >= 2:\n    print(1)\nelse:" in sources[7]
    assert 'is_installed("horovod"):\n    x = 1\nelse:' in sources[8]
    assert taken.cells[8].metadata == {"jupyter": {"source_hidden": True}}
    assert '["d2lmulti_book", "paddle"]' in sources[1]


@pytest.mark.parametrize("source", ["x = '''a\nb'''", "x = 1\nx"])
def test_a_guard_never_changes_what_a_cell_does(source):
    with pytest.raises(ValueError, match="cannot stand under"):
        take_away.guarded(source, "import os", "True", "no")


def test_the_wheel_holds_what_chapters_read(tmp_path):
    take_away.build_wheel(tmp_path)
    names = set(zipfile.ZipFile(tmp_path / take_away.WHEEL).namelist())
    for package in ("d2lmulti", "d2lmulti_cluster", "d2lmulti_book"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.relative_to(ROOT).as_posix() in names
    cells = [
        cell.source
        for path in CHAPTERS
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    read = set(
        re.findall(r'"((?:measured|\.\./examples)/[\w/]+\.\w+)"', "\n".join(cells))
    )
    assert len(read) >= 4
    for name in read:
        assert f"d2lmulti_book/files/{name.removeprefix('../')}" in names


def test_a_page_says_how_to_run_what_it_offers(tmp_path):
    folder = tmp_path / web_page.NOTEBOOKS
    folder.mkdir(parents=True)
    (folder / "d2lmulti-1-py3-none-any.whl").touch()
    app = SimpleNamespace(
        srcdir=tmp_path,
        env=SimpleNamespace(found_docs=()),
        config=SimpleNamespace(html_baseurl=""),
    )
    taken = {"torch": "../notebooks/torch/one.ipynb"}
    words = web_page.run_it(app, "chapters/one", taken)
    assert '<a href="../notebooks/torch/one.ipynb" download>PyTorch</a>' in words
    assert "d2lmulti-1-py3-none-any.whl</a> beside it" in words
    assert "jupyter lab one.ipynb" in words and "MXNet" not in words
    app.config.html_baseurl = URL
    assert ".whl" not in web_page.run_it(app, "chapters/one", taken)
