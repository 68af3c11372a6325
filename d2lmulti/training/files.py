"""Write a file whole or not at all: a reader never meets half a result.

The new content goes to a temporary file in the same folder, down to the disk, and takes
the old file's place in one step. A crash at any moment leaves the old file or the new.
"""

from __future__ import annotations

import glob
import json
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InvalidInput


def write_atomically(
    path: str | os.PathLike[str], data: bytes | Callable[[BinaryIO], object]
) -> None:
    """Write `data` to `path`: the bytes, or what the function writes when called.

    The function gets a file open for writing bytes: `lambda f: np.savez(f, X=X)`.
    If anything fails, the old file stays as it was and the error goes on.
    Raises `InvalidInput` for other data, for a folder that does not exist, and for a
    path that is there but no ordinary file.
    """
    target = Path(os.path.realpath(path))  # a link stays, the file behind it is new
    _check_target(target)
    if not callable(data) and not isinstance(data, bytes):
        raise InvalidInput(
            f"expected bytes, or a function that writes them, for {target}, got "
            f"{type(data).__name__}"
        )
    # In the same folder, because a file can only be renamed within one disk.
    temporary = target.with_name(f"{_stem(target)}{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave an empty file
        os.replace(temporary, target)
    except BaseException:  # also Ctrl-C
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left half written beside `path`.

    Only for a time when nobody writes to it.
    """
    target = Path(os.path.realpath(path))
    for file in target.parent.glob(glob.escape(_stem(target)) + "*.tmp"):
        file.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path` as JSON, atomically.

    NumPy's numbers and arrays become numbers and lists. JSON has no NaN and no
    infinity, so the loss of a run that diverged becomes null.
    Raises `InvalidInput` for a value that JSON cannot hold.
    """
    try:
        text = json.dumps(_plain(value), indent=2, allow_nan=False)
    except TypeError as error:
        raise InvalidInput(
            "expected numbers, texts, lists and dictionaries to write to "
            f"{os.fspath(path)}, got something else: {error}; convert it first"
        ) from error
    write_atomically(path, (text + "\n").encode())


def _stem(target: Path) -> str:
    return f".{target.name[:200]}."  # a name may have 255 bytes


def _check_target(target: Path) -> None:
    if not target.parent.is_dir():
        raise InvalidInput(
            f"cannot write {target}: {target.parent} is not a folder; create it first"
        )
    # A folder, or a device such as /dev/null, which the last step would replace.
    if target.exists() and not target.is_file():
        raise InvalidInput(
            f"cannot write {target}: it is not an ordinary file; choose another name"
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
