"""Locks on files: who holds one is alive, because the kernel lets go when he dies.

A name in a folder proves nothing, for a killed process leaves it behind. A lock on the
open file does. Between machines it holds on a shared disk that passes locks on.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InvalidInput, WriteFailed

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_HOLDER = re.compile(rb"d2lmulti, (process \d+ on .+)\n")
_TAKEN = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}


def open_locked(path: Path, mode: str, permissions: int = 0o666) -> BinaryIO | None:
    """Open a file and lock it; None if another open file has the lock.

    Closing the file, or the end of the process, gives the lock back. What `open` raises
    goes on.
    """
    while True:
        file: Any = open(
            path, mode, opener=lambda p, flags: os.open(p, flags, permissions)
        )
        with ExitStack() as closing:
            closing.enter_context(file)
            if not _lock(file):
                return None
            if os.fstat(file.fileno()).st_nlink > 0:
                closing.pop_all()
                return file
        # Whoever had the lock has removed the file: make it anew.


@contextmanager
def held_alone(target: Path) -> Iterator[None]:
    """Keep other runs from `target` during the block, by a locked file beside it.

    Raises `InvalidInput`, with the other's process, where a run has it already, and for
    a file of the lock's name that is not ours; `WriteFailed` as the disk does.
    """
    path = target.with_name(f".{short(target.name)}.lock")
    with ExitStack() as stack:
        try:
            file = open_locked(path, "a+b")
            if file is None:
                raise InvalidInput(
                    f"expected {target} for this run alone, but {_holder(path)} is "
                    "using it; wait for its end, or choose another file"
                )
            stack.enter_context(file)
            file.seek(0)
            text = file.read(1000)
            if text and not _HOLDER.fullmatch(text):
                raise InvalidInput(
                    f"cannot lock {target}: {path} is there and is not a lock of "
                    "d2lmulti; remove it, or choose another file"
                )
            stack.callback(_remove, path)  # before the file is closed: it is ours
            file.truncate(0)
            me = f"d2lmulti, process {os.getpid()} on {socket.gethostname()}\n"
            file.write(me.encode())
            file.flush()
        except OSError as error:
            raise WriteFailed(
                f"cannot lock {target} by a file beside it: {error.strerror or error}; "
                "make room, change the permissions of the folder, or choose another"
            ) from error
        yield


def short(name: str) -> str:
    """Give a file's name, or a digest for one too long to be put into another name."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= 200 else sha256(encoded).hexdigest()


def _remove(path: Path) -> None:
    if sys.platform != "win32":  # where an open file cannot be removed
        path.unlink(missing_ok=True)


def _lock(file: BinaryIO) -> bool:
    """Take the lock of an open file if it is free."""
    try:
        if sys.platform == "win32":
            file.seek(2**30)  # far behind the text, which others may then read
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            finally:
                file.seek(0)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"the disk of {file.name} has no locks: a second run on the same file "
            "would not be noticed",
            stacklevel=2,
        )
    return True


def _holder(path: Path) -> str:
    match = _HOLDER.fullmatch(path.read_bytes()[:1000]) if path.exists() else None
    return match[1].decode() if match else "another process"
