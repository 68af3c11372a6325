"""When each device, or port, is free: what occupies one of them, and what two.

Everything here that is played in the order of a list or a queue goes by these clocks:
a pipeline's computations and messages, and the links of parameter servers. Collectives
of thousands of ranks go by `clock.py`, a whole round at a time. Chapter: *cost_model*.
"""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """From when to when something took place."""

    start: float
    end: float


class DeviceClocks:
    """The times from which on each of `count` devices is free; at first all at 0."""

    def __init__(self, count: int) -> None:
        self.free = [0.0] * count

    def occupy(self, device: int, duration: float, ready: float = 0.0) -> Span:
        """Let one device do something, as soon as it is free and its input `ready`."""
        start = max(self.free[device], ready)
        self.free[device] = start + duration
        return Span(start, start + duration)

    def meet(self, first: int, second: int, duration: float) -> Span:
        """Let two devices do something together, as soon as both have come to it."""
        start = max(self.free[first], self.free[second])
        self.free[first] = self.free[second] = start + duration
        return Span(start, start + duration)
