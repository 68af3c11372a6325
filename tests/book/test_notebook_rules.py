"""Every chapter keeps the rules of tools/notebook_rules.py, which find each fault."""

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


def rules(*cells):
    nb = NotebookNode(cells=list(cells))
    return notebook_rules.source_rules(nb) + notebook_rules.output_rules(nb)


GOOD = (
    LOAD,
    *[code(f"%%tab {k}\nx = 1") for k in ("torch", "mxnet", "paddle")] * 6,
    code("x\n" * 25, printed("words\n" + "#" * 79 + "\n")),
    code("draw()", picture(), figure=CAPTION, alt="A red rectangle."),
    code("1 / 0", ERROR, tags=("raises-exception",)),
    code("%%gpu 2\ngpus()", count=None),
    text("```bash\n# not a title\n```"),
)


def test_a_good_notebook_has_nothing_against_it():
    assert rules(TITLE, *GOOD) == []


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ([text("# Again")], "found 2"),
        ([code("x\n" * 26)], "26 lines"),
        ([code("#" * 71)], "71 columns"),
        ([code("x\n" * 20)] * 17, "340 lines of visible code"),
        ([text("word " * 2600)], "2601 words"),
        ([code("x", printed("1\n" + "#" * 80))], "prints 80 columns"),
        ([code("x")] * 26, "26 code cells"),
        ([LOAD, code("%%tab tf\nx")], "got 'tf'"),
        ([code("%%tab torch\nx")], "must begin its first code cell with %load_ext"),
        ([code("x", tags=("nbval-skip",))], "nbval-skip hides the cell"),
        ([code("x", count=None)], "never executed"),
        ([code("x", printed("careful", "stderr"))], "wrote to stderr: careful"),
        ([code("x", ERROR)], "raised E: v"),
        ([code("x", printed("<A at 0x7f01ac>"))], "an address in memory"),
        ([code("x", printed("saved /home/me/w.npz"))], "a path of this machine"),
        ([code("x", picture(), figure=CAPTION)], "without mystnb.image.alt"),
        ([code("x", figure=CAPTION, alt="A box.")], "shows no image"),
        ([code("x", picture(), figure=CAPTION, alt="A box.")] * 2, "more than one"),
    ],
)
def test_each_rule_finds_what_breaks_it(cells, complaint):
    found = rules(TITLE, *cells)
    assert any(complaint in text for text in found), found


CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.name)
def test_every_chapter_keeps_the_rules(path):
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3"
    assert notebook_rules.source_rules(nb) + notebook_rules.output_rules(nb) == []
