"""Write a file whole or not at all: a reader never meets half a result.

The new content goes to a temporary file in the same folder, down to the disk, and takes
the old file's place in one step. A crash at any moment leaves the old file or the new.
"""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..checks import check_path
from ..errors import InvalidInput, WriteFailed
from ..interrupt import heeded
from .locks import open_locked, short

AnyPath = str | os.PathLike[str]
_CURES = {
    errno.ENOSPC: "make room on the disk, or choose another",
    errno.EDQUOT: "make room in your quota, or choose another disk",
    errno.EFBIG: "choose another disk, or raise the limit on the size of files",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_atomically(path: AnyPath, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Write `data` to `path`: the bytes, or what the function writes when called.

    The function gets a file open for writing and reading bytes:
    `lambda f: np.savez(f, X=X)`. The new file has the permissions of the old one. If
    anything fails, the old file stays as it was and the error goes on; one of the disk
    as `WriteFailed`. Raises `InvalidInput` for other data and as `check_output` does.
    """
    target = _target(path)
    if not callable(data) and not isinstance(data, bytes):
        raise InvalidInput(
            f"expected bytes, or a function that writes them, for {target}, got "
            f"{type(data).__name__}"
        )
    _replace(target, data if callable(data) else lambda file: file.write(data))


def check_output(path: AnyPath) -> Path:
    """Make sure that `path` can be written later; return the file behind links.

    A file is made beside it and removed, and so is what killed processes left there
    half written. Raises `InvalidInput` for a folder that does not exist, a path that is
    there but no ordinary file, and a file that is read-only; `WriteFailed` where the
    disk or the permissions do not let a file be made.
    """
    target = _target(path)
    _remove_leftovers(target)
    _replace(target, None)
    return target


def check_outputs(paths: Mapping[str, AnyPath | None]) -> None:
    """Do so for all that a run will write (option -> file), before it begins.

    Raises `InvalidInput` also where two options name one file, by whatever way.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        target = check_output(path)
        for other, name in seen.items():
            if target == other or (
                target.exists() and other.exists() and target.samefile(other)
            ):
                raise InvalidInput(
                    f"expected different files for {name} and {option}, got {target} "
                    "for both; choose another name for one of them"
                )
        seen[target] = option


def write_json(path: AnyPath, value: Any) -> None:
    """Write `value` to `path` as JSON, atomically.

    NumPy's numbers and arrays become numbers and lists. JSON has no NaN and no
    infinity, so the loss of a run that diverged becomes null.
    Raises `InvalidInput` for a value that JSON cannot hold, and as `write_atomically`.
    """
    try:
        text = json.dumps(_plain(value), indent=2, allow_nan=False)
    except TypeError as error:
        raise InvalidInput(
            "expected numbers, texts, lists and dictionaries to write to "
            f"{os.fspath(path)}, got something else: {error}; convert it first"
        ) from error
    write_atomically(path, (text + "\n").encode())


def _target(path: AnyPath) -> Path:
    """Give the file behind all links, which may be written as far as one can see."""
    # A link stays, and the file behind it is new.
    target = Path(os.path.realpath(check_path("output", path)))
    try:
        if target.is_symlink():
            raise OSError(errno.ELOOP, "a link that leads back to itself")
        status = target.stat() if target.exists() else None
        folder = target.parent.is_dir()
    except OSError as error:
        raise _refusal(path, error) from error
    if not folder:
        raise InvalidInput(
            f"cannot write {target}: {target.parent} is not a folder; make the folder "
            "first"
        )
    if status is None:
        return target
    # A folder, or a device such as /dev/null, which the last step would replace.
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(
            f"cannot write {target}: expected an ordinary file, got a folder or "
            "device; choose another name"
        )
    # A file can be replaced without the right to write it, and root may do anything.
    if not status.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise InvalidInput(
            f"cannot write {target}: it is read-only; choose another name, or change "
            "its permissions"
        )
    return target


@heeded()
def _replace(target: Path, fill: Callable[[BinaryIO], object] | None) -> None:
    """Fill a file beside `target` and put it in its place; without `fill`, only try.

    Ctrl-C waits for the end: between two lines of this it would leave the file behind.
    """
    temporary = None
    try:
        old = target.stat().st_mode if target.exists() else None
        file = _open_beside(target, 0o666 if old is None else 0o600)
        temporary = Path(file.name)
        with file:
            if old is not None:  # it never had more permissions than the old one
                os.chmod(temporary, stat.S_IMODE(old))
            if fill is None:
                return
            fill(file)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave an empty file
        os.replace(temporary, target)
    except OSError as error:
        raise _refusal(target, error) from error
    finally:  # also after a second Ctrl-C
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _open_beside(target: Path, permissions: int) -> BinaryIO:
    """Open a new file, whose lock tells `_remove_leftovers` that the writer lives."""
    while True:
        # In the same folder, because a file can only be renamed within one disk.
        path = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}.tmp")
        if file := open_locked(path, "x+b", permissions):
            return file


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left half written beside `target`.

    Only files of our own pattern whose lock nobody holds any more.
    """
    ours = re.compile(re.escape(_prefix(target)) + r"[0-9a-f]{16}\.tmp")
    for file in target.parent.glob(glob.escape(_prefix(target)) + "*.tmp"):
        # One that is gone, or belongs to somebody else, is not ours to remove.
        with suppress(FileNotFoundError, PermissionError):
            if ours.fullmatch(file.name) and (left := open_locked(file, "r+b")):
                with left:
                    file.unlink()


def _prefix(target: Path) -> str:
    return f".{short(target.name)}.d2lmulti-"


def _refusal(path: AnyPath, error: OSError) -> WriteFailed:
    usual = "choose another file, or change the permissions of its folder"
    return WriteFailed(
        f"cannot write {os.fspath(path)!s:.300}: {error.strerror or error}; what was "
        f"there is as it was; {_CURES.get(error.errno or 0, usual)}"
    )


def _plain(value: Any) -> Any:
    """Replace what JSON does not know, all the way down."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # a NumPy number or array
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
