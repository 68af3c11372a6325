"""What a run will write is tried before it begins, and belongs to one run alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from d2lmulti.errors import InvalidInput, WriteFailed
from d2lmulti.files.atomic import check_output, check_outputs
from d2lmulti.files.locks import held_alone, open_locked

LEFTOVER = ".run.npz.d2lmulti-0123456789abcdef.tmp"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_can_be_written_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    before = (tmp_path / "old").stat()
    some = {"--json": tmp_path / "old", "--timeline": None, "--plot": tmp_path / "new"}
    check_outputs(some)
    after = (tmp_path / "old").stat()
    assert names(tmp_path) == ["old"]
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def make_links(folder: Path) -> None:
    (folder / "a").write_bytes(b"old")
    (folder / "soft").symlink_to("a")
    (folder / "hard").hardlink_to(folder / "a")
    (folder / "ahead").symlink_to("not yet")
    (folder / "inner").mkdir()


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "a"), ("new", "new"), ("a", "soft"), ("a", "hard"), ("soft", "hard")]
    + [("ahead", "not yet"), ("a", "inner/../a")],
)
def test_one_file_for_two_outputs_is_refused(
    tmp_path: Path, one: str, other: str
) -> None:
    make_links(tmp_path)
    before = names(tmp_path)
    message = "different files for --json and --plot, got .* for both; choose another"
    with pytest.raises(InvalidInput, match=message):
        check_outputs({"--json": tmp_path / one, "--plot": str(tmp_path / other)})
    assert names(tmp_path) == before


LONG = "x" * 300
BAD = {
    "no folder": ("gone/x", InvalidInput, "gone is not a folder; make the folder"),
    "a file as a folder": ("file/x", InvalidInput, "file is not a folder"),
    "a folder": ("inner", InvalidInput, "expected an ordinary file, got a folder"),
    "a pipe": ("pipe", InvalidInput, "expected an ordinary file"),
    "nothing": ("", InvalidInput, "expected the name of a file as output, got ''"),
    "a long name": (LONG, WriteFailed, "name too long; .*choose a shorter name"),
    "a loop": ("loop", WriteFailed, "a link that leads back to itself"),
    "a zero byte": ("a\0b", InvalidInput, "expected the name of a file"),
    "a number": (3, InvalidInput, "name of a file as output, got 3"),
    "a place without room for new files": ("/proc/x", WriteFailed, "/proc/x: No such"),
}


@pytest.mark.parametrize("cause", BAD)
def test_what_cannot_be_written_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inner").mkdir()
    Path("file").touch()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    before, (path, kind, message) = names(tmp_path), BAD[cause]
    with pytest.raises(kind, match=f"(?i){message}"):
        check_outputs({"--json": path})  # type: ignore[dict-item]
    assert names(tmp_path) == before


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder in which this process, which stops being root, may make no file."""
    folder, me = Path(tempfile.mkdtemp()), os.geteuid()
    folder.chmod(0o555)
    if me == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(me)
    folder.rmdir()


def test_a_folder_that_one_may_not_write_is_refused(read_only_folder: Path) -> None:
    message = "Permission denied; .* change the permissions of its folder"
    with pytest.raises(WriteFailed, match=message):
        check_output(read_only_folder / "x")
    with (
        pytest.raises(WriteFailed, match="cannot lock .*Permission denied"),
        held_alone(read_only_folder / "x"),
    ):
        raise AssertionError("locked without a lock")


# -- what killed writers leave ---------------------------------------------------------


def test_only_our_own_dead_leftovers_are_removed(tmp_path: Path) -> None:
    theirs = [".run.npz.keep.tmp", ".run.npz.0123456789abcdef.tmp", LEFTOVER + "x"]
    theirs += [LEFTOVER.replace("run.npz", "run.npz.old"), LEFTOVER.replace("0", "g")]
    for name in (*theirs, LEFTOVER):
        (tmp_path / name).touch()
    check_output(tmp_path / "run.npz")
    assert names(tmp_path) == sorted(theirs)


def test_what_is_being_written_is_not_removed(tmp_path: Path) -> None:
    writing = open_locked(tmp_path / LEFTOVER, "xb")
    assert writing is not None
    with writing:
        check_output(tmp_path / "run.npz")
        assert names(tmp_path) == [LEFTOVER]
    check_output(tmp_path / "run.npz")
    assert names(tmp_path) == []


# -- one run alone ---------------------------------------------------------------------

HOLD = f"""
import sys
sys.path[:0] = {sys.path}
from pathlib import Path
from d2lmulti.files.locks import held_alone
with held_alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["run.npz", "y" * 255])
def test_a_second_run_is_refused_with_the_name_of_the_first(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as first:  # fmt: skip
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(InvalidInput, match=f"but process {first.pid} on .* using"):
            with held_alone(path):
                raise AssertionError("two runs at once")
        with held_alone(tmp_path / "other.npz"):
            pass
        first.send_signal(signal.SIGKILL)
    assert len(names(tmp_path)) == 1  # a lock that nobody holds
    with held_alone(path):
        assert f"process {os.getpid()} " in next(tmp_path.iterdir()).read_text()
    assert names(tmp_path) == []


def test_a_second_run_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with (
        held_alone(tmp_path / "run.npz"),
        pytest.raises(InvalidInput, match=f"process {os.getpid()} "),
        held_alone(tmp_path / "run.npz"),
    ):
        raise AssertionError("two runs at once")


def test_somebodys_file_of_the_locks_name_is_kept(tmp_path: Path) -> None:
    (tmp_path / ".run.npz.lock").write_text("mine")
    message = re.escape(".run.npz.lock is there and is not a lock of d2lmulti")
    with (
        pytest.raises(InvalidInput, match=message),
        held_alone(tmp_path / "run.npz"),
    ):
        raise AssertionError("locked by a file that is not a lock")
    assert (tmp_path / ".run.npz.lock").read_text() == "mine"
