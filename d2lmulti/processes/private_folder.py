"""Names of the semaphores that go with a file of a launch's folder."""

from __future__ import annotations

from pathlib import Path


def semaphore_name(file: Path) -> str:
    """Return the beginning of the names that belong to a file of the folder."""
    word = file.parent.name.rpartition("-")[2]
    return f"/d2l-{word}-{file.name.rpartition(' ')[2]}-"
