"""A semaphore that two processes share: what one has posted, the other can take.

It is the one of POSIX, as the standard library's multiprocessing has it. It counts, and
it orders: what a process has written before it posts is there for the one who takes, on
every processor. Plain counters in shared memory promise that on x86 alone.
"""

from __future__ import annotations

from _multiprocessing import SemLock, sem_unlink  # type: ignore[import-not-found]

_COUNTING = 1  # its kind; 0 would be a lock
_MOST = 2**30


class Semaphore:
    """One end of a semaphore with `value` posts to begin with, found by its name.

    Whoever comes first makes it. The second removes its name, so that nothing is left
    when both processes have ended.
    """

    def __init__(self, name: str, value: int = 0) -> None:
        try:
            self._lock = SemLock(_COUNTING, value, _MOST, name, False)
        except FileExistsError:
            self._lock = SemLock._rebuild(0, _COUNTING, _MOST, name)
            sem_unlink(name)
        self.post = self._lock.release

    def take(self) -> bool:
        """Take one post, if there is one."""
        return self._lock.acquire(False)
