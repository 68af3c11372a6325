"""The sources that a table depends on, as one hash of their contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import ROOT


def digest(sources: Iterable[str], root: Path = ROOT) -> str:
    """Return a hash of the names and contents of files and of folders of files."""
    found = hashlib.sha256()
    for source in sorted(sources):
        for path in files(root / source):
            name = path.relative_to(root).as_posix()
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            found.update(f"{name} {content}\n".encode())
    return found.hexdigest()[:12]


def files(path: Path) -> Iterator[Path]:
    """Yield a file, or all files of a folder in order, without compiled ones."""
    if path.is_file():
        yield path
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            if inner.name != "__pycache__" and not inner.name.startswith("."):
                yield from files(inner)
    else:
        raise FileNotFoundError(f"{path} is a source of a table, but does not exist")
