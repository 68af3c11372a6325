"""What a pipeline did: when each instruction ran, and what was held meanwhile.

The executor enters every computation here while it carries it out. The clock is a
model: each kind of computation has a duration, and it starts when its device has come
to it and its input is there. A message happens when *both* of its devices have come to
it, so it costs time where it stands in a bad place. What is held is counted from the
tensors the executor has. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..checks import check_flag, check_kind
from ..plans.pipeline import (
    AnyInstruction,
    Durations,
    Instruction,
    Sends,
    StageTransfer,
    simulate,
    stage_ranks,
)
from .device_clocks import DeviceClocks, Span
from .timeline import Timeline


class Slot(NamedTuple):
    """One computation on a device, on the modelled clock."""

    device: int
    instruction: Instruction
    start: float
    end: float


class Held(NamedTuple):
    """From this time on, a stage holds so many micro-batches for its way back."""

    time: float
    device: int
    stage: int
    micro_batches: int
    bytes: int


@dataclass
class PipelineRecord:
    """The slots of one step and what was held; the next step starts it anew."""

    durations: Durations = field(default_factory=Durations)  #: of the modelled clock
    devices: int = 0  #: their number
    stages: int = 0  #: their number
    slots: list[Slot] = field(default_factory=list, repr=False)  #: computations
    #: what was kept, from when on
    held: list[Held] = field(default_factory=list, repr=False)
    _messages: list[tuple[int, int, Span]] = field(default_factory=list, repr=False)
    _clocks: DeviceClocks = field(default_factory=lambda: DeviceClocks(0), repr=False)

    def restart(self, devices: int, stages: int) -> None:
        """Forget the step before."""
        self.devices, self.stages = devices, stages
        self.slots, self.held, self._messages = [], [], []
        self._clocks = DeviceClocks(devices)

    def compute(
        self, device: int, instruction: Instruction, ready: float, recompute: bool
    ) -> Slot:
        """Enter a computation whose inputs are there from `ready` on."""
        duration = self.durations.of(instruction, recompute)
        start, end = self._clocks.occupy(device, duration, ready)
        slot = Slot(device, instruction, start, end)
        self.slots.append(slot)
        return slot

    def exchange(self, source: int, target: int) -> float:
        """Enter a message for which both devices wait; tell when it is there."""
        span = self._clocks.meet(source, target, self.durations.transfer)
        if self.durations.transfer:
            self._messages.append((source, target, span))
        return span.end

    def hold(
        self, time: float, device: int, stage: int, micro_batches: int, nbytes: int
    ) -> None:
        """Enter what a stage holds from now on."""
        self.held.append(Held(time, device, stage, micro_batches, nbytes))

    @property
    def makespan(self) -> float:
        """When the last device has finished."""
        return max((slot.end for slot in self.slots), default=0)

    def busy(self, device: int) -> float:
        """How long a device computed."""
        return sum(
            slot.end - slot.start for slot in self.slots if slot.device == device
        )

    def span(self, device: int) -> float:
        """How long a device takes from its first computation to the end of its last."""
        mine = [slot for slot in self.slots if slot.device == device]
        return mine[-1].end - mine[0].start if mine else 0

    @property
    def longest_span(self) -> float:
        """What a step costs when devices begin the next one without a common start."""
        return max((self.span(device) for device in self._all), default=0)

    @property
    def idle(self) -> float:
        """Device time without work, summed over the devices, from start to end."""
        busy = sum(self.busy(device) for device in range(self.devices))
        return self.devices * self.makespan - busy

    @property
    def idle_share(self) -> float:
        """The bubble: the share of all device time in which nothing was done."""
        whole = self.devices * self.makespan
        return self.idle / whole if whole else 0.0

    @property
    def peak_live(self) -> list[int]:
        """The most micro-batches that every stage held at once."""
        return [
            max((h.micro_batches for h in self.held if h.stage == stage), default=0)
            for stage in range(self.stages)
        ]

    @property
    def device_peak_live(self) -> list[int]:
        """The most that every device held at once, its stages together."""
        return [max(level for _, level, _ in self.levels(d)) for d in self._all]

    @property
    def device_peak_bytes(self) -> list[int]:
        """The most bytes of activations that every device held at once."""
        return [max(size for _, _, size in self.levels(d)) for d in self._all]

    @property
    def _all(self) -> range:
        return range(self.devices)

    def levels(self, device: int) -> list[tuple[float, int, int]]:
        """Give (time, micro-batches, bytes) of a device at every change, from 0 on."""
        now = {h.stage: (0, 0) for h in self.held if h.device == device}
        found: list[tuple[float, int, int]] = [(0, 0, 0)]
        for h in self.held:
            if h.device == device:
                now[h.stage] = (h.micro_batches, h.bytes)
                live, size = (sum(column) for column in zip(*now.values(), strict=True))
                found.append((h.time, live, size))
        return found

    def timeline(self) -> Timeline:
        """Slots, and messages that take time, for a trace: a slot becomes a second."""
        found = Timeline()
        for slot in self.slots:
            name = str(slot.instruction)
            found.add(f"device {slot.device}", name, slot.start, slot.end)
        for source, target, span in self._messages:
            found.add(f"device {source}", f"message to device {target}", *span)
        return found


def play_schedule(
    lists: Sequence[Sequence[AnyInstruction]],
    durations: Durations | None = None,
    recompute: bool = False,
) -> PipelineRecord:
    """Play the lists of all devices without a tensor: what ran when, and nothing held.

    A message takes `durations.transfer`, say a link's `seconds(nbytes)`. Raises
    `PlanError` where devices wait for each other, `InvalidInput` for no lists.

    >>> from d2lmulti.plans.schedules import SCHEDULES
    >>> play_schedule(SCHEDULES["1f1b"](4, 12)).makespan  # 3 slots x (12 + 4 - 1)
    45.0
    """
    durations = Durations() if durations is None else durations
    check_kind("durations", durations, Durations, "Durations")
    check_flag("recompute", recompute)
    stages = len(stage_ranks(lists))
    found = PipelineRecord(durations)
    found.restart(len(lists), stages)
    for device, one in simulate(lists):
        if isinstance(one, Sends):  # its receive comes right after it
            found.exchange(device, one.device)
        elif isinstance(one, Instruction) and not isinstance(one, StageTransfer):
            found.compute(device, one, 0.0, recompute)
    return found
