"""The private folder of a launch: what its processes share, and nobody else can touch.

What they unpickle lies here: the function, and the values it returns. A launcher holds
a lock on its folder, so that the next one can tell what a dead one has left behind.
Chapter: *many_machines*.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from ..errors import D2LMultiError
from .guard import remove_semaphores, word_of

if sys.platform != "win32":
    import fcntl

_PREFIX = "d2lmulti-"
_NEW = 60.0  # seconds


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder with the mode 0700, in memory where the system has that."""
    where = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path(gettempdir())
    remove_leftovers(where)
    with TemporaryDirectory(prefix=_PREFIX, dir=where) as name:
        with _held(Path(name)):
            try:
                yield Path(name)
            finally:
                remove_semaphores(Path(name))


def semaphore_name(file: Path) -> str:
    """Give the beginning of names of semaphores that go with a file of the folder."""
    return f"/d2l-{word_of(file.parent)}-{file.name.rpartition(' ')[2]}-"


def check_private(folder: Path) -> None:
    """Refuse a folder in which another user could have put a file to unpickle.

    Raises `D2LMultiError`.
    """
    try:
        about = folder.lstat()
    except FileNotFoundError as error:
        raise D2LMultiError(
            f"expected the folder of this launch, {folder}, which is gone; a function "
            "must not remove it"
        ) from error
    if (
        not stat.S_ISDIR(about.st_mode)
        or about.st_mode & 0o077
        or (hasattr(os, "getuid") and about.st_uid != os.getuid())
    ):
        raise D2LMultiError(
            f"expected {folder} to be this user's own folder with the mode 0700, got "
            f"one of user {about.st_uid} with {stat.filemode(about.st_mode)}; what it "
            "holds is not read"
        )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder, until this process lets go or dies, as one that is in use."""
    if sys.platform == "win32":
        yield
        return
    with open(folder / "lock", "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_leftovers(where: Path) -> None:
    """Remove this user's folders of launchers that died together with their guard."""
    if sys.platform == "win32":
        return
    for folder in where.glob(f"{_PREFIX}*"):
        try:
            about = folder.lstat()
            # Of a new one the launcher may not have the lock yet.
            new = time.time() - about.st_mtime < _NEW
            if new or about.st_uid != os.getuid() or not stat.S_ISDIR(about.st_mode):
                continue
            with open(folder / "lock", "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                remove_semaphores(folder)
        except OSError:  # held, or removed by somebody else
            continue
