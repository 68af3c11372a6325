"""What `python -m d2lmulti train` does to files: nothing that was not asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from d2lmulti import cli
from d2lmulti.errors import WriteFailed

QUICK = ["train", "--backend", "numpy", "--model", "mlp", "--epochs", "1"]
QUICK += ["--batch-size", "512"]


def train(*options: str) -> int:
    return cli.main([*QUICK, *options])


def limited(size: int, *options: str) -> subprocess.CompletedProcess:
    """Train in a Python that cannot write larger files, as if the disk were full."""
    code = (
        "import resource, sys; from d2lmulti.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
        f"sys.exit(main({[*QUICK, *options]}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )


def one_sentence(text: str, begin: str, end: str) -> bool:
    line = text.removesuffix("\n")
    return line.startswith(begin) and line.endswith(end) and "\n" not in line


REFUSED = {
    "one file for two": ("--json {a} --plot {a}", "different files, got --json"),
    "the checkpoint's file": ("--checkpoint {a} --timeline {a}", "different files"),
    "a read-only result": ("--json {locked}", "it is read-only"),
    "a read-only checkpoint": ("--checkpoint {locked} --resume", "it is read-only"),
    "a picture that is no PNG": ("--plot curve.svg", "ends in .png for --plot"),
    "a name too long": ("--plot {long}", "name too long"),
    "a checkpoint over a text": ("--checkpoint {notes}", "--resume"),
    "a text as a checkpoint": ("--checkpoint {notes} --resume", "that cannot be read"),
}


@pytest.mark.parametrize("cause", REFUSED)
def test_files_are_refused_before_any_work(cause, tmp_path, monkeypatch, capsys):
    options, message = REFUSED[cause]
    names = {"a": "a", "locked": "locked", "long": "x" * 300, "notes": "notes"}
    for name in ("locked", "notes"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "locked").chmod(0o444)
    monkeypatch.chdir(tmp_path)
    assert train(*options.format(**names).split()) == 2
    told = capsys.readouterr()
    assert message in told.err and told.err.startswith("error: ") and told.out == ""
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "locked": "mine", "notes": "mine",
    }  # fmt: skip


def test_results_replace_old_ones_and_keep_their_permissions(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text("old")
    path.chmod(0o600)
    assert train("--json", str(path)) == 0
    assert path.read_text().startswith("{") and path.stat().st_mode & 0o777 == 0o600


def test_a_disk_that_fills_up_in_the_middle_of_a_save_loses_nothing(tmp_path: Path):
    path = tmp_path / "run.npz"  # 1.6 MB
    for when in ("the first save", "a later save"):
        before = path.read_bytes() if path.exists() else None
        done = limited(10**6, "--epochs", "2", "--checkpoint", str(path), "--resume")
        assert (done.returncode, done.stdout) == (2, ""), when
        assert one_sentence(done.stderr, "error: cannot write ", "File too large")
        assert os.listdir(tmp_path) == ([path.name] if before else [])
        if before is None:
            assert train("--checkpoint", str(path)) == 0
        else:
            assert path.read_bytes() == before
    assert train("--epochs", "2", "--checkpoint", str(path), "--resume") == 0


def test_a_result_that_cannot_be_written_is_printed_all_the_same(tmp_path: Path):
    curve = tmp_path / "curve.png"  # 60 kB
    files = ["--json", str(tmp_path / "history.json"), "--plot", str(curve)]
    done = limited(10_000, *files)
    assert done.returncode == 2 and done.stdout.startswith("test accuracy 0.")
    assert one_sentence(done.stderr, f"error: cannot write {curve}: File too", "large")
    assert os.listdir(tmp_path) == ["history.json"]  # which fits


def test_all_that_failed_is_named(tmp_path, monkeypatch, capsys):
    def full(path, _):
        raise WriteFailed(f"no room for {path}")

    monkeypatch.setattr(cli, "write_json", full)
    curve = tmp_path / "curve.png"
    assert train("--json", "h", "--timeline", "t", "--plot", str(curve)) == 2
    told = capsys.readouterr()
    assert told.out.startswith("test accuracy") and curve.exists()
    assert told.err == "error: no room for t; no room for h\n"
