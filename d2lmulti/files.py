"""Progress bars, and files that are written atomically.

A reader gets the old content or the new, never a part of it: the new content is written
to a temporary file in the same folder, flushed to disk, and replaces the old file in
one step. After Ctrl-C, a kill, or on a full disk, the old file remains.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from .errors import InvalidInput, WriteFailed


def progress(total: int, unit: str, description: str, wanted: bool = True) -> Any:
    """Return a progress bar on stderr, shown on a terminal and in a notebook.

    D2LMULTI_QUIET=1 silences it, and so does `wanted=False`.
    """
    from tqdm import tqdm  # here, so that importing d2lmulti stays fast

    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and ipython.get_ipython() is not None
    terminal = sys.stderr is not None and sys.stderr.isatty()  # None where it is closed
    quiet = os.environ.get("D2LMULTI_QUIET") == "1" or not (notebook or terminal)
    options = {"unit": unit, "unit_scale": True, "disable": quiet or not wanted}
    return tqdm(total=total, desc=description, **options)


AnyPath = str | os.PathLike[str]


def write_atomically(path: AnyPath, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Write bytes, or what a function writes into the open file it is given.

    The new file keeps the permissions of the old one. Raises what `check_output` raises
    and `WriteFailed`; the old file then stays as it was.
    """
    target = check_output(path)
    temporary = _temporary(target)
    try:
        with open(temporary, "xb") as file:
            if target.exists():  # before the content, which may be confidential
                temporary.chmod(target.stat().st_mode & 0o777)
            if callable(data):
                data(file)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power failure could empty the file
        os.replace(temporary, target)
    except OSError as error:
        raise _failed(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: AnyPath) -> Path:
    """Check that `path` can be written later; return the file that links refer to.

    Raises `InvalidInput` for a folder, a device or a read-only file, and `WriteFailed`
    where no file can be created.
    """
    target = Path(os.path.realpath(path))
    if os.path.exists(target) and not target.is_file():
        raise InvalidInput(f"cannot write {target}: expected an ordinary file")
    # Replacing a file needs no write permission for it, so this protects its content.
    if os.path.exists(target) and not target.stat().st_mode & 0o222:
        raise InvalidInput(f"cannot write {target}: it is read-only")
    probe = _temporary(target)
    try:
        try:
            probe.touch()
        finally:  # also after Ctrl-C
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise _failed(target, error) from error
    return target


def check_outputs(paths: Mapping[str, AnyPath | None]) -> None:
    """Check all files (option -> path) that a run will write, before it begins.

    Raises `InvalidInput` also if two options name the same file.
    """
    targets = {o: check_output(path) for o, path in paths.items() if path is not None}
    if len(set(targets.values())) < len(targets):
        files = ", ".join(f"{option} {target}" for option, target in targets.items())
        raise InvalidInput(f"expected different files, got {files}")


def write_json(path: AnyPath, value: Any) -> None:
    """Write `value` as JSON; NumPy arrays become lists, and nan and inf become null."""

    def plain(x: Any) -> Any:
        if isinstance(x, dict):
            return {key: plain(inner) for key, inner in x.items()}
        if isinstance(x, (list, tuple)):
            return [plain(inner) for inner in x]
        if hasattr(x, "tolist"):  # a NumPy number or array
            return plain(x.tolist())
        return None if isinstance(x, float) and not math.isfinite(x) else x

    write_atomically(path, (json.dumps(plain(value), indent=2) + "\n").encode())


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock `target` for this process in the block, by a lock file next to it.

    The kernel releases the lock of a process that is killed. Temporary files of killed
    writers are removed. Raises `InvalidInput` if another run holds the lock.
    """
    lock = FileLock(target.with_name(f".{target.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidInput(
            f"another run is using {target}; wait for its end or choose another file"
        ) from None
    except OSError as error:
        raise _failed(target, error) from error
    try:
        for leftover in target.parent.glob(f".{escape(target.name)}.{'?' * 8}.tmp"):
            leftover.unlink()
        yield
    finally:
        with suppress(OSError):  # on Windows, `release` removes the file
            os.unlink(lock.lock_file)
        lock.release()


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def _failed(target: Path, error: OSError) -> WriteFailed:
    return WriteFailed(f"cannot write {target}: {error.strerror or error}")
