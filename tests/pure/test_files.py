"""Atomic writing: the old file or the new one, never half of one, and no leftovers."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from d2lmulti.errors import InvalidInput
from d2lmulti.files import atomic
from d2lmulti.files.atomic import check_output, write_atomically, write_json


def fail_midway(file: BinaryIO) -> None:
    file.write(b"half of the n")
    raise RuntimeError("stopped halfway")


def interrupt(file: BinaryIO) -> None:
    file.write(b"half of the n")
    raise KeyboardInterrupt


@pytest.mark.parametrize("as_text", [True, False])
def test_bytes_are_written(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "result.bin"
    write_atomically(str(path) if as_text else path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["result.bin"]


def test_a_function_writes_into_the_open_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    write_atomically(path, lambda file: np.savez(file, W=np.arange(6.0)))
    with np.load(path) as stored:
        np.testing.assert_array_equal(stored["W"], np.arange(6.0))
    assert os.listdir(tmp_path) == ["weights.npz"]


def test_an_old_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old and longer than the new one")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_nobody_sees_the_new_content_before_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")
    seen = []

    def write(file: BinaryIO) -> None:
        file.write(b"n")
        file.flush()
        seen.append(path.read_bytes())
        file.write(b"ew")

    write_atomically(path, write)
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"


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
    with pytest.raises(error):
        write_atomically(path, write)
    assert os.listdir(tmp_path) == (["result"] if old else [])
    assert old is None or path.read_bytes() == old


@pytest.mark.parametrize("step", ["open_locked", "fsync", "replace"])
def test_ctrl_c_at_any_step_leaves_no_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "result"
    where: Any = atomic if step == "open_locked" else os
    done = getattr(where, step)

    def interrupted(*arguments: Any) -> Any:
        result = done(*arguments)
        signal.raise_signal(signal.SIGINT)  # the step is done, its result not yet used
        return result

    # In a shell's background Ctrl-C is ignored, and the tests may run there.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        monkeypatch.setattr(where, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, b"new")
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.listdir(tmp_path) == ["result"]
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")

    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, no_room)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert os.listdir(tmp_path) == ["result"]
    assert path.read_bytes() == b"old"


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


def test_a_new_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "ordinary").write_bytes(b"")
    ours, ordinary = ((tmp_path / f).stat().st_mode for f in ("ours", "ordinary"))
    assert ours == ordinary


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_the_permissions_of_the_old_file_are_kept(tmp_path: Path, mode: int) -> None:
    path, seen = tmp_path / "result", []
    path.write_bytes(b"secret")
    path.chmod(mode)

    def write(file: BinaryIO) -> None:
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        file.write(b"new")

    write_atomically(path, write)
    assert [*seen, stat.S_IMODE(path.stat().st_mode)] == [mode, mode]


def test_a_link_stays_and_the_file_behind_it_is_new(tmp_path: Path) -> None:
    target, link = tmp_path / "run-7.json", tmp_path / "latest.json"
    target.write_bytes(b"old")
    try:
        link.symlink_to(target)
    except OSError:  # Windows without the right: then the file itself is the subject
        link = target
    write_atomically(link, b"new")
    assert target.read_bytes() == b"new"
    assert link == target or link.is_symlink()


def test_bad_targets_and_bad_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="missing is not a folder; make the folder first"
    ):
        write_atomically(tmp_path / "missing" / "result", b"new")
    with pytest.raises(
        InvalidInput, match="an ordinary file, got a folder .* choose another"
    ):
        write_atomically(tmp_path, b"new")
    with pytest.raises(InvalidInput, match="expected an ordinary file"):
        write_atomically(os.devnull, b"new")
    with pytest.raises(InvalidInput, match="expected bytes, or a function .* got str"):
        write_atomically(tmp_path / "result", "new")
    assert os.listdir(tmp_path) == []


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"old")
    path.chmod(0o444)  # which does not stop the administrator, nor a rename
    for refuse in (lambda: write_atomically(path, b"new"), lambda: check_output(path)):
        with pytest.raises(InvalidInput, match="read-only; choose another name"):
            refuse()
    assert path.read_bytes() == b"old"


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
).filter(lambda value: "Infinity" not in json.dumps(value))


@given(value=PLAIN)
def test_json_comes_back_as_it_was(
    value: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("json") / "value.json"
    write_json(path, value)
    assert json.loads(path.read_bytes()) == value


def test_json_takes_numpys_numbers_and_writes_null_for_what_json_lacks(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.json"
    write_json(
        path,
        {
            "bytes": np.int64(7),
            "accuracy": np.float32(0.5),
            "converged": np.bool_(False),
            "losses": (1.5, float("nan"), np.float64("inf")),
            "shares": np.array([[1.0, np.nan]]),
        },
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {
        "bytes": 7,
        "accuracy": 0.5,
        "converged": False,
        "losses": [1.5, None, None],
        "shares": [[1.0, None]],
    }


def test_json_refuses_what_it_cannot_hold_and_keeps_the_old_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.json"
    write_json(path, [1])
    for value in ({"when": object()}, {(1, 2): 3}):
        with pytest.raises(InvalidInput, match="expected numbers, texts, lists"):
            write_json(path, value)
    assert json.loads(path.read_bytes()) == [1]
    assert os.listdir(tmp_path) == ["history.json"]
