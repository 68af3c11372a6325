"""A new chapter begins in the form that every chapter has."""

import nbformat
import new_chapter
import pytest
from notebook_rules import output_rules, source_rules


def test_a_new_chapter_breaks_no_rule_but_that_it_never_ran(tmp_path):
    assert new_chapter.main(["two_trees", "Two trees", "--folder", str(tmp_path)]) == 0
    notebook = nbformat.read(tmp_path / "two_trees.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert source_rules(notebook) == []
    assert {found.split(": ")[1][:14] for found in output_rules(notebook)} == {
        "never executed"
    }
    prose = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    for part in ("# Two trees", "able to", "{exercise}", "{solution-end}", "Summary"):
        assert part in prose


def test_a_chapter_is_never_overwritten(tmp_path, capsys):
    (tmp_path / "ring.ipynb").write_text("mine")
    assert new_chapter.main(["ring", "Ring", "--folder", str(tmp_path)]) == 1
    assert (tmp_path / "ring.ipynb").read_text() == "mine"
    assert "there already" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Ring", "ring.ipynb", "../ring", "2rings", ""])
def test_a_name_that_is_no_module_name_is_refused(tmp_path, capsys, name):
    assert new_chapter.main([name, "Ring", "--folder", str(tmp_path)]) == 1
    assert "expected a name like" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
