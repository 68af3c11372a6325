"""How much other programs used the machine while a speed was measured.

If they used much, the speed means little. Chapter: *bottlenecks*.
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
    """Processor seconds of other programs until now, and the time in seconds."""
    import time

    import psutil

    me, total = psutil.Process(), psutil.cpu_times()
    busy = sum(total) - total.idle - getattr(total, "iowait", 0.0)
    # A process that has ended counts in its parent's, which may be a fork server.
    ours = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    mine = sum(p.user + p.system + p.children_user + p.children_system for p in ours)
    return busy - mine, time.perf_counter()
