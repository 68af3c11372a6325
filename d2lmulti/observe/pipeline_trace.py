"""A trace of a pipeline: when each instruction ran, and what was stored then.

`with pipeline_trace() as trace:` listens to the executor, as a ledger does to
transfers. The clock is a model: each kind of computation has a duration and begins when
its device has come to it. A message happens when *both* of its devices have come to it,
so a badly placed one costs time. What is stored is counted from real tensors.
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
    """The computations of one step and what was stored; the next step starts anew."""

    def __init__(self, durations: Durations | None = None) -> None:
        self.durations = Durations() if durations is None else durations
        self.on_pipeline(0, 0)

    def on_pipeline(self, devices: int, stages: int, recompute: bool = False) -> None:
        """Forget the step before."""
        self.devices, self.stages, self._recompute = devices, stages, recompute
        self.spans: list[Span] = []
        self.messages: list[Span] = []
        self.samples: list[MemorySample] = []
        self._free = [0.0] * devices  # from when on each device is
        self._last: dict[int, Span] = {}  # computation, by the device
        self._live: dict[int, int] = {}  # micro-batches stored, by the stage

    def on_instruction(self, device: int, instruction: AnyInstruction) -> None:
        """Let a device compute, or send, as soon as it (and the receiver) is free.

        Its input is there: it comes earlier in the device's own list.
        """
        if isinstance(instruction, Sends):
            both = device, instruction.device
            start = max(self._free[d] for d in both)
            end = start + self.durations.transfer
            self.messages.append(Span(device, instruction, start, end))
            for d in both:
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
        """Enter what a stage stores: more at a computation's start, less at its end."""
        freed = micro_batches < self._live.get(stage, 0)
        self._live[stage] = micro_batches
        time = self._last[device].end if freed else self._last[device].start
        self.samples.append(MemorySample(time, device, stage, micro_batches, nbytes))

    @property
    def makespan(self) -> float:
        """The time at which the last device has finished."""
        return max((span.end for span in self.spans), default=0)

    def busy(self, device: int) -> float:
        """Return how long a device computed."""
        return sum(s.end - s.start for s in self.spans if s.device == device)

    def span(self, device: int) -> float:
        """Return the time from a device's first computation to the end of its last."""
        own = [span for span in self.spans if span.device == device]
        return own[-1].end - own[0].start if own else 0

    @property
    def longest_span(self) -> float:
        """The time of a step if each device begins the next one on its own."""
        return max((self.span(device) for device in range(self.devices)), default=0)

    @property
    def idle(self) -> float:
        """Device time without work, summed over the devices, from start to end."""
        busy = sum(self.busy(device) for device in range(self.devices))
        return self.devices * self.makespan - busy

    @property
    def idle_share(self) -> float:
        """The bubble: the idle share of all device time."""
        whole = self.devices * self.makespan
        return self.idle / whole if whole else 0.0

    @property
    def peak_live(self) -> list[int]:
        """For each stage, the most micro-batches that it stored at once."""
        peaks = [0] * self.stages
        for sample in self.samples:
            peaks[sample.stage] = max(peaks[sample.stage], sample.micro_batches)
        return peaks

    @property
    def device_peak_live(self) -> list[int]:
        """For each device, the most micro-batches that its stages stored at once."""
        return [max(n for _, n, _ in self.levels(d)) for d in range(self.devices)]

    @property
    def device_peak_bytes(self) -> list[int]:
        """For each device, the most bytes of activations that it stored at once."""
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
        found = Timeline()
        for device, instruction, start, end in self.spans:
            found.add(f"device {device}", str(instruction), start, end)
        for device, send, start, end in self.messages:
            if end > start:
                name = f"message to device {send.device}"
                found.add(f"device {device}", name, start, end)
        return found


@contextmanager
def pipeline_trace(durations: Durations | None = None) -> Iterator[PipelineTrace]:
    """Trace the pipeline steps inside the `with` block; the last one is kept."""
    trace = PipelineTrace(durations)
    with observe(trace):
        yield trace


def play_schedule(
    lists: Sequence[Sequence[AnyInstruction]],
    durations: Durations | None = None,
    recompute: bool = False,
) -> PipelineTrace:
    """Play the lists of all devices without a tensor: what ran when.

    A message takes `durations.transfer`, say a link's `seconds(nbytes)`. Raises
    `PlanError` where devices wait for each other.

    >>> from d2lmulti.plans.schedules import SCHEDULES
    >>> play_schedule(SCHEDULES["1f1b"](4, 12)).makespan  # 3 slots x (12 + 4 - 1)
    45.0
    """
    trace = PipelineTrace(durations)
    trace.on_pipeline(len(lists), len(stage_ranks(lists)), recompute)
    for device, instruction in simulate(lists):
        trace.on_instruction(device, instruction)
    return trace
