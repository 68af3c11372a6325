"""A trace of a pipeline: when each instruction ran, and what was stored.

`with pipeline_trace() as trace:` listens to the executor, as a ledger does to
transfers. The clock is a model: each kind of computation has a duration and begins when
its device reaches it. A message is sent when *both* of its devices have reached it, so
a badly placed one costs time. Stored bytes are counted from real tensors.
Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..events import observe
from ..plans.pipeline import (
    AnyInstruction,
    Durations,
    Instruction,
    Sends,
    StageTransfer,
    simulate,
    stage_ranks,
)
from .timeline import Timeline


class Span(NamedTuple):
    """One computation, or one message as its sender sees it, on the modeled clock."""

    device: int
    instruction: Any
    start: float
    end: float


class MemorySample(NamedTuple):
    """From this time on, a stage stores so many micro-batches."""

    time: float
    device: int
    stage: int
    micro_batches: int
    bytes: int


class PipelineTrace:
    """The computations and stored activations of the latest step."""

    def __init__(self, durations: Durations | None = None) -> None:
        self.durations = Durations() if durations is None else durations
        self.on_pipeline(0, 0)

    def on_pipeline(self, devices: int, stages: int, recompute: bool = False) -> None:
        """Start a new step."""
        self.devices, self.stages, self._recompute = devices, stages, recompute
        self.spans: list[Span] = []
        self.messages: list[Span] = []
        self.samples: list[MemorySample] = []
        self._free = [0.0] * devices  # the time from which each device is idle
        self._last: dict[int, Span] = {}  # the last computation, by device
        self._live: dict[int, int] = {}  # micro-batches stored, by stage

    def on_instruction(self, device: int, instruction: AnyInstruction) -> None:
        """Record that a device computes, or sends, once it (and the receiver) is idle.

        Its input has arrived, because it is earlier in the device's own list.
        """
        if isinstance(instruction, Sends):
            ends = device, instruction.device
            start = max(self._free[d] for d in ends)
            end = start + self.durations.transfer
            self.messages.append(Span(device, instruction, start, end))
            for d in ends:
                self._free[d] = end
        elif isinstance(instruction, Instruction) and not isinstance(
            instruction, StageTransfer
        ):
            start = self._free[device]
            end = start + self.durations.of(instruction, self._recompute)
            self._last[device] = Span(device, instruction, start, end)
            self.spans.append(self._last[device])
            self._free[device] = end

    def on_stored(
        self, device: int, stage: int, micro_batches: int, nbytes: int
    ) -> None:
        """Record what a stage stores, from a computation's start or after its end."""
        freed = micro_batches < self._live.get(stage, 0)
        self._live[stage] = micro_batches
        time = self._last[device].end if freed else self._last[device].start
        self.samples.append(MemorySample(time, device, stage, micro_batches, nbytes))

    @property
    def makespan(self) -> float:
        """Return the time at which the last device has finished."""
        return max((span.end for span in self.spans), default=0)

    def busy(self, device: int) -> float:
        """Return the time for which a device computed."""
        return sum(s.end - s.start for s in self.spans if s.device == device)

    def span(self, device: int) -> float:
        """Return the time from a device's first computation to the end of its last."""
        spans = [span for span in self.spans if span.device == device]
        return spans[-1].end - spans[0].start if spans else 0

    @property
    def longest_span(self) -> float:
        """Return the time per step if devices start the next one independently."""
        return max((self.span(device) for device in range(self.devices)), default=0)

    @property
    def idle(self) -> float:
        """Return the idle time, summed over the devices, from start to end."""
        busy = sum(self.busy(device) for device in range(self.devices))
        return self.devices * self.makespan - busy

    @property
    def idle_share(self) -> float:
        """Return the bubble: the idle fraction of all device time."""
        total = self.devices * self.makespan
        return self.idle / total if total else 0.0

    @property
    def device_peak_live(self) -> list[int]:
        """Return the peak number of micro-batches that every device stored."""
        return [max(n for _, n, _ in self.levels(d)) for d in range(self.devices)]

    @property
    def device_peak_bytes(self) -> list[int]:
        """Return the peak bytes of activations of every device."""
        return [max(b for *_, b in self.levels(d)) for d in range(self.devices)]

    def levels(self, device: int) -> list[tuple[float, int, int]]:
        """Return (time, micro-batches, bytes) of a device at every change."""
        now: dict[int, tuple[int, int]] = {}  # by stage
        levels: list[tuple[float, int, int]] = [(0, 0, 0)]
        for sample in self.samples:
            if sample.device == device:
                now[sample.stage] = sample.micro_batches, sample.bytes
                live, size = (sum(column) for column in zip(*now.values(), strict=True))
                levels.append((sample.time, live, size))
        return levels

    def timeline(self) -> Timeline:
        """Return computations, and messages that take time; a slot becomes a second."""
        timeline = Timeline()
        for device, instruction, start, end in self.spans:
            timeline.add(f"device {device}", str(instruction), start, end)
        for device, send, start, end in self.messages:
            if end > start:
                name = f"message to device {send.device}"
                timeline.add(f"device {device}", name, start, end)
        return timeline


@contextmanager
def pipeline_trace(durations: Durations | None = None) -> Iterator[PipelineTrace]:
    """Trace the pipeline steps inside the `with` block; the last one remains."""
    trace = PipelineTrace(durations)
    with observe(trace):
        yield trace


def play_schedule(
    lists: Sequence[Sequence[AnyInstruction]], durations: Durations | None = None
) -> PipelineTrace:
    """Simulate the lists of all devices without tensors; return the trace.

    A message takes `durations.transfer`, say a link's `seconds(nbytes)`. Raises
    `PlanError` where devices wait for each other.

    >>> from d2lmulti.plans.schedules import SCHEDULES
    >>> play_schedule(SCHEDULES["1f1b"](4, 12)).makespan  # 3 slots x (12 + 4 - 1)
    45.0
    """
    trace = PipelineTrace(durations)
    trace.on_pipeline(len(lists), len(stage_ranks(lists)))
    for device, instruction in simulate(lists):
        trace.on_instruction(device, instruction)
    return trace
