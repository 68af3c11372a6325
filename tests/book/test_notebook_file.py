"""Running a notebook again changes as little of its file as possible."""

import json

import notebook_file
import pytest
from book.notebooks import code, picture, png, printed, save, text
from nbformat.v4 import new_output


def test_cells_without_an_id_get_the_same_one_every_time(tmp_path):
    path = save(tmp_path / "a.ipynb", text("# A"), code("1"), code("1"))
    raw = json.loads(path.read_text())
    for cell in raw["cells"]:
        del cell["id"]
    path.write_text(json.dumps(raw))
    first = [cell.id for cell in notebook_file.read(path).cells]
    assert first == [cell.id for cell in notebook_file.read(path).cells]
    assert len(set(first)) == 3


def test_ids_that_are_there_stay(tmp_path):
    path = save(tmp_path / "a.ipynb", text("# A"), code("1"))
    assert [c.id for c in notebook_file.read(path).cells] == ["cell-0", "cell-1"]


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"nbformat": 3, "cells": []}))
    with pytest.raises(ValueError, match="expected a notebook of format 4"):
        notebook_file.read(path)


def test_only_neighbouring_pieces_of_one_stream_are_joined():
    outputs = [
        printed("a"),
        printed("b\n"),
        picture(),
        printed("c"),
        printed("d", "stderr"),
    ]
    tidy = notebook_file.tidy_outputs(outputs)
    assert [o.get("text") for o in tidy] == ["ab\n", None, "c", "d"]


def test_a_traceback_keeps_no_path():
    error = new_output(
        "error", ename="E", evalue="v", traceback=["File /home/me/x.py", "E"]
    )
    assert notebook_file.tidy_outputs([error])[0].traceback == ["E: v"]


def test_an_image_with_equal_pixels_keeps_its_bytes():
    old, same, other = png(compress=9), png(compress=0), png("blue")
    assert old != same
    (kept,) = notebook_file.keep_equal_images([picture(old)], [picture(same)])
    assert kept.data["image/png"] == old
    (new,) = notebook_file.keep_equal_images([picture(old)], [picture(other)])
    assert new.data["image/png"] == other
    (new,) = notebook_file.keep_equal_images(
        [picture(old)], [picture(png(size=(9, 4)))]
    )
    assert new.data["image/png"] != old
    assert notebook_file.keep_equal_images([], [picture(other)])


def test_nothing_tells_when_where_and_how_it_ran(tmp_path):
    cell = code("1", new_output("execute_result", data={"text/plain": "1"}))
    cell.metadata = {
        "execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"},
        "collapsed": True,
        "tags": ["hide-input"],
    }
    cell.execution_count = 7
    path = save(tmp_path / "a.ipynb", text("# A"), cell)
    nb = notebook_file.read(path)
    nb.metadata.kernelspec.name = "my-venv"
    nb.metadata.language_info.version = "3.11.7"
    nb = notebook_file.normal(nb)
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.metadata.language_info == {"name": "python"}
    assert nb.cells[1].metadata == {"tags": ["hide-input"]}
    assert nb.cells[1].outputs[0].execution_count == 7


def test_an_unchanged_notebook_is_not_written(tmp_path):
    path = save(tmp_path / "a.ipynb", text("# A"), code("1"))
    nb = notebook_file.read(path)
    nb.cells[0].source = "# B"
    assert notebook_file.write(path, nb)
    before = path.stat().st_mtime_ns
    assert not notebook_file.write(path, notebook_file.read(path))
    assert path.stat().st_mtime_ns == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.ipynb"]
