"""The modeled clock of a recorded step.

A layer's forward pass on an eighth of the batch takes 1, its backward pass 2, an update
of all weights 1, and a message 0.1 plus 1 for every 29,770 bytes. A device sends one
message and receives one at a time.
"""

from __future__ import annotations

from typing import Any

LATENCY, BYTES_PER_UNIT = 0.1, 29_770  # the whole gradient takes 8 units and a latency


class Play:
    """Plays a log on the modeled clock: devices, their ports, and what they store."""

    def __init__(self, devices: int, each: str = "layer") -> None:
        self.devices, self.each = devices, each
        self.now = [0.0] * devices
        self.sending, self.receiving = [0.0] * devices, [0.0] * devices
        self.blocks: list[list[Any]] = []
        self.messages: list[list[Any]] = []
        self.what: list[str] = []
        self.held = [
            [0, 0] for _ in range(devices)
        ]  # weights and gradients, activations
        self.memory: list[list[list[float]]] = [[] for _ in range(devices)]
        self.waiting: list[tuple[Any, ...]] = []  # rounds that have no name yet

    def hold(self, d: int, weights: int = 0, stored: int = 0, at: float = -1) -> None:
        """Let a device store more bytes, or with negative numbers fewer."""
        self.held[d][0] += weights
        self.held[d][1] += stored
        time = round(self.now[d] if at < 0 else at, 3)
        if self.memory[d] and self.memory[d][-1][0] == time:
            self.memory[d].pop()
        self.memory[d].append([time, *self.held[d]])

    def compute(self, d: int, kind: str, number: int, units: float) -> None:
        """Let a device compute as soon as it is free."""
        start = self.now[d]
        self.now[d] += units
        self.blocks.append([d, start, self.now[d], kind, number])

    def send(self, what: str) -> None:
        """Exchange the waiting rounds: each begins where the one before has ended."""
        label = self.label(what)
        for number, (_, rows, line) in enumerate(self.waiting, 1):
            done = [*self.now]
            for s, t, size in rows:
                ready = max(self.now[s], self.now[t])
                end = self.transfer(s, t, size, ready, label, number, line)
                done[s], done[t] = max(done[s], end), max(done[t], end)
            self.now = done
        self.waiting = []

    def pass_on(self, what: str, ready: float) -> None:
        """Send the waiting messages while their senders go on: `ready` since then."""
        for _, rows, line in self.waiting:
            for s, t, size in rows:
                end = self.transfer(s, t, size, ready, self.label(what), 0, line)
                self.now[t] = max(self.now[t], end)
        self.waiting = []

    def transfer(self, s: int, t: int, size: int, ready: float, *about: int) -> float:
        """Send a message once it is ready and both ports are free; return its end."""
        start = max(ready, self.sending[s], self.receiving[t])
        end = start + LATENCY + size / BYTES_PER_UNIT
        self.sending[s] = self.receiving[t] = end
        self.messages.append([s, t, start, end, size, *about])
        return end

    def label(self, what: str) -> int:
        """Return the place of a message's purpose in the list of all."""
        if what not in self.what:
            self.what.append(what)
        return self.what.index(what)


def check_clock(play: Play) -> None:
    """Raise AssertionError if a device computes, sends or receives two at a time."""
    for d in range(play.devices):
        for spans in (
            [b[1:3] for b in play.blocks if b[0] == d],
            [m[2:4] for m in play.messages if m[0] == d],
            [m[2:4] for m in play.messages if m[1] == d],
        ):
            spans.sort()
            for before, after in zip(spans, spans[1:], strict=False):
                if before[1] > after[0] + 1e-9:
                    raise AssertionError(f"device {d}: {before} overlaps {after}")
