"""The runner of the chapters: its table, and that no failure gets lost."""

import os

import pytest
import run_notebooks
from book.notebooks import code, save, text

REPORT = """<testsuites><testsuite>
  <testcase classname="chapters.setup.ipynb" name="Cell 0" time="1.5"/>
  <testcase classname="chapters.setup.ipynb" name="Cell 1" time="0.25"/>
  <testcase classname="chapters.data_parallel.ipynb" name="Cell 0" time="3"/>
</testsuite></testsuites>"""


def test_times_are_added_up_per_chapter(tmp_path):
    report = tmp_path / "torch.xml"
    assert run_notebooks.seconds_by_chapter(report) == {}
    report.write_text(REPORT)
    assert run_notebooks.seconds_by_chapter(report) == {
        "setup": 1.75,
        "data_parallel": 3.0,
    }


def test_a_cell_that_failed_is_named(tmp_path):
    report = tmp_path / "torch.xml"
    assert run_notebooks.failures(report) == []
    told = '"><failure message="outputs\n differ">all of it</failure></testcase>'
    report.write_text(REPORT.replace('"3"/>', f'"3{told}'))
    assert run_notebooks.failures(report) == [
        "  chapters.data_parallel.ipynb::Cell 0: outputs differ"
    ]


def test_the_table_has_a_column_a_backend_and_a_last_sum():
    seconds = {"b": {"torch": 1.0, "mxnet": 2.0}, "a": {"torch": 0.5}}
    lines = run_notebooks.table(seconds, ["torch", "mxnet"]).splitlines()
    assert [line.split() for line in lines] == [
        ["seconds", "torch", "mxnet"],
        ["a", "0.5", "-"],
        ["b", "1.0", "2.0"],
        ["all", "chapters", "1.5", "2.0"],
    ]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [((0, 0, 0), 0), ((0, 1, 0), 1), ((5, 0, 0), 1), ((0, 0, -11), 1)],
)
def test_one_failing_backend_fails_all(
    monkeypatch, tmp_path, capsys, statuses, expected
):
    answers = iter(statuses)
    monkeypatch.setattr(run_notebooks, "REPORTS", tmp_path)
    monkeypatch.setattr(run_notebooks.subprocess, "call", lambda *a, **k: next(answers))
    assert run_notebooks.main(["torch", "mxnet", "paddle"]) == expected
    assert list(answers) == []  # a failure does not keep the others from running
    assert ("FAILED" in capsys.readouterr().out) == bool(expected)


def test_each_backend_is_told_who_it_is(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(run_notebooks, "REPORTS", tmp_path)
    monkeypatch.setattr(
        run_notebooks.subprocess,
        "call",
        lambda command, cwd, env: seen.append((command, env)) or 0,
    )
    run_notebooks.main(["mxnet", "--pytest=-k setup"])
    ((command, env),) = seen
    assert env["D2LMULTI_BACKEND"] == "mxnet"
    assert env["D2LMULTI_QUIET"] == "1"
    assert command[-2:] == ["-k", "setup"]


def test_a_chapter_that_asks_for_no_framework_runs_once(monkeypatch, tmp_path):
    tagged = code("1", tags=("without-framework",))
    save(tmp_path / "chapters/alike.ipynb", text("# A"), tagged)
    save(tmp_path / "chapters/other.ipynb", text("# B"), code("1"), tagged)
    seen = []
    monkeypatch.setattr(run_notebooks, "ROOT", tmp_path)
    monkeypatch.setattr(run_notebooks, "REPORTS", tmp_path)
    monkeypatch.setattr(
        run_notebooks.subprocess,
        "call",
        lambda command, cwd, env: seen.append(command[-1]) or 0,
    )
    run_notebooks.main(["torch", "mxnet", "paddle", "--pytest=-k setup"])
    assert seen == ["setup", *["--ignore=chapters/alike.ipynb"] * 2]


def test_posed_gpus_are_told_to_the_kernels(monkeypatch, tmp_path, capsys):
    seen = []
    monkeypatch.setattr(run_notebooks, "REPORTS", tmp_path)
    monkeypatch.setattr(
        run_notebooks.subprocess,
        "call",
        lambda command, cwd, env: seen.append(env) or 0,
    )
    run_notebooks.main(["torch", "--posed=8"])
    (env,) = seen
    assert env["D2LMULTI_POSED"] == "8"
    assert env["PYTHONPATH"].split(os.pathsep)[0].endswith("posed")
    assert "on 8 posed GPUs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run_notebooks.main(["mxnet", "--posed=2"])
    assert "expected torch alone with --posed" in capsys.readouterr().err
