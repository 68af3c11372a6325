"""The line budget of modules and chapters is kept, and a file over it is found."""

import line_budget
import pytest
from book.notebooks import code, save, text


def lines(n):
    return '"""One idea."""\n' + "x = 1\n" * (n - 1)


def test_a_module_of_450_lines_is_within_budget():
    assert line_budget.module_rules(lines(450)) == []


def test_a_longer_module_is_over_budget():
    (found,) = line_budget.module_rules(lines(451))
    assert found.startswith("451 lines, at most 450")


def test_a_module_docstring_has_8_lines_at_most():
    assert line_budget.module_rules('"""' + "a\n" * 7 + 'b"""\n') == []
    (found,) = line_budget.module_rules('"""' + "a\n" * 8 + 'b"""\n')
    assert found.startswith("9 lines of module docstring")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([code("x = 1") for _ in range(26)], "26 code cells"),
        ([code("x = 1\n" * 26)], "26 lines"),
        ([code("x = '" + "y" * 80 + "'")], "columns"),
        ([code("x = 1", count=None)], "never executed"),
    ],
)
def test_a_chapter_over_its_budget_is_found(tmp_path, cells, words):
    path = save(tmp_path / "long.ipynb", text("# One title"), *cells)
    assert any(words in found for found in line_budget.over_budget(path))


def test_the_command_ends_with_1_and_names_the_file(tmp_path, capsys):
    (tmp_path / "short.py").write_text(lines(10))
    (tmp_path / "long.py").write_text(lines(500))
    names = [str(tmp_path / "short.py"), str(tmp_path / "long.py")]
    assert line_budget.main(names[:1]) == 0
    assert line_budget.main(names) == 1
    out = capsys.readouterr().out
    assert "long.py: 500 lines" in out
    assert "short.py" not in out


def test_every_folder_of_the_project_is_looked_at():
    found = {path.parent.name for path in line_budget.files_of_the_project()}
    assert {"backends", "book", "tools", "chapters"} <= found
