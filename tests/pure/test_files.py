"""Atomic writing: the old file or the new one, never half of one, and no leftovers."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from d2lmulti.errors import InvalidInput, WriteFailed
from d2lmulti.files import (
    check_output,
    check_outputs,
    locked,
    write_atomically,
    write_json,
)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def fail_midway(file: BinaryIO) -> None:
    file.write(b"half of the n")
    raise RuntimeError("stopped halfway")


def interrupt(file: BinaryIO) -> None:
    file.write(b"half of the n")
    signal.raise_signal(signal.SIGINT)


def test_an_old_file_is_replaced_only_when_the_new_one_is_complete(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "result", []
    write_atomically(str(path), b"old and longer than the new one")

    def write(file: BinaryIO) -> None:
        file.write(b"n")
        file.flush()
        seen.append(path.read_bytes())
        file.write(b"ew")

    write_atomically(path, write)
    assert seen == [b"old and longer than the new one"]
    assert path.read_bytes() == b"new" and names(tmp_path) == ["result"]


@pytest.mark.parametrize("old", [b"old", None])
@pytest.mark.parametrize(
    ("write", "error"), [(fail_midway, RuntimeError), (interrupt, KeyboardInterrupt)]
)
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path,
    write: Callable[[BinaryIO], None],
    error: type[BaseException],
    old: bytes | None,
) -> None:
    path = tmp_path / "result"
    if old is not None:
        path.write_bytes(old)
    # In a shell's background Ctrl-C is ignored, and the tests may run there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(error):
            write_atomically(path, write)
    finally:
        signal.signal(signal.SIGINT, before)
    assert names(tmp_path) == (["result"] if old else [])
    assert old is None or path.read_bytes() == old


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, no_room)
    with pytest.raises(WriteFailed, match="No space left"):
        write_atomically(path, b"new")
    assert names(tmp_path) == ["result"] and path.read_bytes() == b"old"


def test_the_content_is_on_the_disk_before_the_old_file_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (steps.append("fsync"), fsync(f)))
    monkeypatch.setattr(
        os, "replace", lambda *paths: (steps.append("replace"), replace(*paths))
    )
    write_atomically(tmp_path / "result", b"new")
    assert steps == ["fsync", "replace"]


@pytest.mark.parametrize("mode", [0o600, 0o755])
def test_permissions_are_kept_and_a_link_stays(tmp_path: Path, mode: int) -> None:
    target, link, seen = tmp_path / "run-7.json", tmp_path / "latest.json", []
    target.write_bytes(b"secret")
    target.chmod(mode)
    link.symlink_to(target)

    def write(file: BinaryIO) -> None:
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        file.write(b"new")

    write_atomically(link, write)
    assert target.read_bytes() == b"new" and link.is_symlink()
    assert [*seen, stat.S_IMODE(target.stat().st_mode)] == [mode, mode]


@pytest.mark.parametrize("path", ["gone/x", "inner", "pipe", "locked", "/proc/x"])
def test_what_cannot_be_written_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inner").mkdir()
    os.mkfifo("pipe")
    Path("locked").touch(0o444)
    before = names(tmp_path)
    with pytest.raises((InvalidInput, WriteFailed)):
        check_outputs({"--json": path})
    assert names(tmp_path) == before


@pytest.mark.parametrize(
    ("one", "other"), [("a", "a"), ("new", "new"), ("a", "soft"), ("a", "inner/../a")]
)
def test_one_file_for_two_outputs_is_refused(
    tmp_path: Path, one: str, other: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "soft").symlink_to("a")
    (tmp_path / "inner").mkdir()
    with pytest.raises(InvalidInput, match="--json .* --plot"):
        check_outputs({"--json": tmp_path / one, "--plot": str(tmp_path / other)})


HOLD = f"""
import sys
sys.path[:0] = {sys.path}
from pathlib import Path
from d2lmulti.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    (tmp_path / ".run.npz.01234567.tmp").touch()  # what a killed writer left
    (tmp_path / ".run.npz.old.01234567.tmp").touch()  # of another file
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as first:  # fmt: skip
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        with pytest.raises(InvalidInput, match="another run is using"), locked(path):
            raise AssertionError("two runs at once")
        with locked(tmp_path / "other.npz"):
            pass
        first.send_signal(signal.SIGKILL)
    with (
        locked(path),
        pytest.raises(InvalidInput, match="another run is using"),
        locked(path),
    ):
        raise AssertionError("two runs at once in one process")
    assert names(tmp_path) == [".run.npz.old.01234567.tmp"]
    assert check_output(path) == path


def test_json_takes_numpys_numbers_and_writes_null_for_what_json_lacks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.json"
    given = {
        "bytes": np.int64(7), "accuracy": np.float32(0.5), "converged": np.bool_(False),
        "losses": (1.5, float("nan"), np.float64("inf")),
        "shares": np.array([[1.0, np.nan]]),
    }  # fmt: skip
    write_json(path, given)
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
        "bytes": 7, "accuracy": 0.5, "converged": False,
        "losses": [1.5, None, None], "shares": [[1.0, None]],
    }  # fmt: skip
    with pytest.raises(TypeError):
        write_json(path, {"when": object()})
    assert names(tmp_path) == ["history.json"]
