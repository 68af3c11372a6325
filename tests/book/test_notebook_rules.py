"""Every rule of tools/notebook_rules.py is broken once; the chapters keep them all."""

import nbformat
import notebook_rules
import pytest
from book.notebooks import ROOT, code, picture, printed, text
from nbformat import NotebookNode
from nbformat.v4 import new_output

TITLE = text("# Title")
LOAD = code("%load_ext d2lmulti_book.notebook")
CAPTION = {"name": "fig-one", "caption": "One."}
ERROR = new_output("error", ename="E", evalue="v")
WIDGET = "application/vnd.jupyter.widget-view+json"


def result(text):
    return new_output("execute_result", data={"text/plain": text}, execution_count=1)


def rules(*cells):
    nb = NotebookNode(cells=list(cells))
    return notebook_rules.source_rules(nb) + notebook_rules.output_rules(nb)


GOOD = (
    LOAD,
    code("%%tab torch\nx = 1"),
    code("x\n" * 25, printed("words\n" + "#" * 79 + "\n"), result("#" * 79)),
    code("draw()", picture(), figure=CAPTION, alt="A red rectangle."),
    code(
        "1 / 0", new_output("error", ename="E", evalue="v"), tags=("raises-exception",)
    ),
    code("%%gpu 2\ngpus()", count=None),
    code("slider()", new_output("display_data", data={"text/html": "#" * 80})),
)


def test_a_good_notebook_has_nothing_against_it():
    assert rules(TITLE, *GOOD) == []


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ((), "expected one title (# ...), found 0"),
        ((TITLE, text("# Again")), "found 2"),
        ((TITLE, code("")), "In [1]: the cell is empty"),
        ((TITLE, code("x\n" * 26)), "26 lines; at most 25"),
        ((TITLE, code("#" * 71)), "71 columns, at most 70"),
        ((TITLE, *[code("x\n" * 20)] * 17), "340 lines of visible code; at most 320"),
        ((TITLE, text("word " * 2600)), "2601 words without solutions"),
        ((TITLE, code("if x:\n\ty")), "a TAB, whose width"),
        ((TITLE, code("x", printed("1\n" + "#" * 80))), "prints 80 columns"),
        ((TITLE, code("x", printed("a\tb"))), "prints a TAB"),
        ((TITLE, code("x", result("#" * 80))), "prints 80 columns"),
        ((TITLE, *[code("x")] * 26), "26 code cells run under one backend"),
        ((TITLE, LOAD, code("%%tab tf\nx")), "paddle after %%tab, got 'tf'"),
        ((TITLE, code("%%needs jax\nx")), "after %%needs, got 'jax'"),
        ((TITLE, code("%%gpu two\nx")), "a number of GPUs after %%gpu, got 'two'"),
        (
            (TITLE, code("%%tab torch\nx")),
            "must begin its first code cell with %load_ext",
        ),
        (
            (TITLE, code("x", tags=("without-framework",)), code("%%tab torch\nx")),
            "tagged without-framework has cells of torch",
        ),
        ((TITLE, code("x", tags=("nbval-skip",))), "nbval-skip hides the cell"),
        ((TITLE, code("x", count=None)), "never executed"),
        ((TITLE, code("x", printed("careful", "stderr"))), "wrote to stderr: careful"),
        ((TITLE, code("x", ERROR)), "raised E: v"),
        ((TITLE, code("x", printed("<A at 0x7f01ac>"))), "an address in memory"),
        ((TITLE, code("x", printed("saved /home/me/w.npz"))), "a path of this machine"),
        ((TITLE, code("x", picture())), "an image without mystnb.figure.name"),
        ((TITLE, code("x", picture(), figure=CAPTION)), "without mystnb.image.alt"),
        (
            (TITLE, code("x", picture(), figure=CAPTION, alt="One.")),
            "repeats the caption",
        ),
        ((TITLE, code("x", figure=CAPTION, alt="A box.")), "shows no image"),
        (
            (TITLE, code("x", picture(), picture(), figure=CAPTION, alt="A box.")),
            "shows 2 things but is one figure",
        ),
        (
            (TITLE, *[code("x", picture(), figure=CAPTION, alt="A box.")] * 2),
            "more than one figure is called 'fig-one'",
        ),
        (
            (TITLE, code("x", new_output("display_data", data={WIDGET: {}}))),
            "shows a widget",
        ),
    ],
)
def test_each_rule_finds_what_breaks_it(cells, complaint):
    found = rules(*cells)
    assert any(complaint in text for text in found), found


def test_tabs_of_three_backends_count_once():
    tabs = [code(f"%%tab {k}\nx") for k in ("torch", "mxnet", "paddle")]
    assert rules(TITLE, LOAD, *tabs * 6) == []
    assert any("26 code cells" in t for t in rules(TITLE, LOAD, *tabs * 25))


def test_a_comment_in_a_code_block_is_no_title():
    assert rules(TITLE, text("```bash\n# not a title\nmake book\n```")) == []


CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_every_chapter_keeps_the_rules(path):
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3"
    assert notebook_rules.source_rules(nb) + notebook_rules.output_rules(nb) == []
