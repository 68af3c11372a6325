"""The load by other programs while a speed is measured.

Under such a load a claim about speed cannot be checked. Chapter: *bottlenecks*.
"""

from __future__ import annotations

from typing import Any


class Neighbors:
    """After `with Neighbors() as others: ...`, `others.cores` is what others used.

    This process and those that it started do not count.
    """

    cores = 0.0

    def __enter__(self) -> Neighbors:
        self._before = _clock()
        return self

    def __exit__(self, *error: Any) -> None:
        used, now = (b - a for a, b in zip(self._before, _clock(), strict=True))
        self.cores = max(0.0, used / now)


def _clock() -> tuple[float, float]:
    """Return the processor seconds of other programs so far, and the time."""
    import time

    import psutil

    me, total = psutil.Process(), psutil.cpu_times()
    busy = sum(total) - total.idle - getattr(total, "iowait", 0.0)
    # The time of an ended process counts in its parent, which may be a fork server.
    processes = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    own = sum(
        p.user + p.system + p.children_user + p.children_system for p in processes
    )
    return busy - own, time.perf_counter()
