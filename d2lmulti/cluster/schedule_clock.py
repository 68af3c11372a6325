"""The virtual clock plays a pipeline's schedule: computations and messages of devices.

A computation starts when its device has come to it; a message when both its ends have,
and it keeps both busy, as in an engine whose sends wait. Chapter: *cost_model*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..checks import check_flag, check_kind, check_list, check_number
from ..plans.pipeline.durations import Durations
from ..plans.pipeline.instructions import (
    AnyInstruction,
    Instruction,
    ReceiveActivation,
    ReceiveGradient,
    SendActivation,
    SendGradient,
)
from ..plans.pipeline.simulate import simulate
from .device_clocks import DeviceClocks
from .hardware import Link
from .timeline import Timeline


def play_schedule(
    lists: Sequence[Sequence[AnyInstruction]],
    durations: Durations | None = None,
    link: Link | None = None,
    nbytes: float = 0.0,
    recompute: bool = False,
) -> Timeline:
    """Play the lists of all devices; give the timeline, in the durations' unit.

    `link` and `nbytes`: what an activation's message takes, and that of its gradient;
    without a link it takes `durations.transfer`. Devices are tracks, "device 0" first.
    Raises `PlanError` where devices wait for each other, `InvalidInput` for no lists.

    >>> from d2lmulti.plans.pipeline.schedules import SCHEDULES
    >>> play_schedule(SCHEDULES["1f1b"](4, 12)).end  # 3 slots x (12 + 4 - 1)
    45.0
    """
    durations = Durations() if durations is None else durations
    check_kind("durations", durations, Durations, "Durations")
    check_number("nbytes", nbytes, least=0)
    check_flag("recompute", recompute)
    check_list("lists", lists, "lists of instructions, one a device")
    for some in lists:
        check_list("lists", some, "instructions", least=0)
        for one in some:
            check_kind("an instruction", one, AnyInstruction, "an Instruction or Step")
    message = durations.transfer
    if link is not None:
        message = check_kind("link", link, Link, "a Link").seconds(nbytes)
    found, clocks = Timeline(), DeviceClocks(len(lists))
    for device, one in simulate(lists):
        if isinstance(one, (ReceiveActivation, ReceiveGradient)):
            continue  # its sender came right before
        track = f"device {device}"
        if isinstance(one, (SendActivation, SendGradient)):
            span = clocks.meet(device, one.device, message)
            if message:
                found.add(track, str(one), *span)
        elif isinstance(one, Instruction):
            span = clocks.occupy(device, durations.of(one, recompute))
            found.add(track, str(one), *span)
    return found
