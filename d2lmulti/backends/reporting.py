"""Keeps count of which gradients were reported as finished, for `on_grad_ready`."""

from __future__ import annotations

from collections.abc import Callable


class Reporter:
    """Passes reports on, and in the end reports what no backward pass reached."""

    def __init__(self, count: int, ready: Callable[[int], None]) -> None:
        self._ready = ready
        self._untold = set(range(count))

    def tell(self, i: int, *_: object) -> None:
        """Report parameter i (hooks pass more, which is not needed)."""
        self._untold.discard(i)
        self._ready(i)

    def tell_rest(self) -> None:
        """Report the parameters that were never reported, the last one first."""
        for i in sorted(self._untold, reverse=True):
            self.tell(i)
