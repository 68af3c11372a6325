"""Processes that stay: tests that ask for the same ones are run beside each other."""

from __future__ import annotations

import pytest

from d2lmulti.processes.launcher import Ranks


def started_once(engine: str, backend: str, n: int) -> list[pytest.MarkDecorator]:
    """Mark a test that asks for these: one worker runs it with all its like."""
    group = pytest.mark.xdist_group(f"{engine}-{backend}-{n}")
    return [getattr(pytest.mark, backend), group]


class Staying:
    """`staying(engine, backend, n)`: n processes, until other ones are asked for."""

    def __init__(self) -> None:
        self.asked: tuple[str, str, int] | None = None
        self.ranks = Ranks()  # not yet started

    def __call__(self, engine: str, backend: str, n: int) -> Ranks:
        if self.asked != (engine, backend, n):
            self.ranks.close()
            self.asked = engine, backend, n
            self.ranks = Ranks(n, engine=engine, backend=backend)
        return self.ranks

    def end(self) -> None:
        """End them, as what they were asked for has left them of no use."""
        self.ranks.close()
        self.asked = None
