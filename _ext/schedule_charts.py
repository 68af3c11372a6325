"""The charts that the book's schedule slider shows.

Every schedule is played on the modelled clock, messages counted, for each number of
devices and micro-batches that the slider offers. A device is a line of words: `F0` is
the forward pass of micro-batch 0, small letters are the device's later stage, `-1.5` is
idle for 1.5 slots. _static/schedule_slider.js draws what stands there.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from d2lmulti.observe.pipeline_record import PipelineRecord
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Durations,
    Forward,
    Instruction,
    Lists,
    ReceiveActivation,
    ReceiveGradient,
    StageTransfer,
    Step,
    simulate,
)
from d2lmulti.plans.schedules import SCHEDULES

DEVICES = (2, 3, 4, 6, 8)
MICRO_BATCHES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
# As the chapter calls them, in its order, and how many stages a device has.
OFFERED = {
    "naive": ("sequential", 1),
    "GPipe": ("gpipe", 1),
    "1F1B": ("1f1b", 1),
    "interleaved": ("interleaved", 2),
    "zero-bubble (ZB-H1)": ("zero_bubble", 1),
    "ZB-H2": ("zb_h2", 1),
    "ZB-V": ("zb_v", 2),
}
LETTERS: dict[type[Instruction], str] = {
    Forward: "F",
    Backward: "B",
    BackwardInput: "I",
    BackwardWeight: "W",
}


def played(lists: Lists, chunks: int) -> PipelineRecord:
    """Play lists without a tensor; a stage of 1 / chunks takes as much of a slot."""
    times = (slots / chunks for slots in (1, 2, 1, 1))
    record = PipelineRecord(Durations(*times))
    record.restart(len(lists), len(lists) * chunks)
    live: Counter[int] = Counter()
    for d, i in simulate(lists):
        if isinstance(i, (ReceiveActivation, ReceiveGradient)):
            record.exchange(i.device, d)
        elif not isinstance(i, (StageTransfer, Step)):
            # What it needs is there: it came before in the device's own list.
            slot = record.compute(d, i, 0, recompute=False)
            live[i.stage] += isinstance(i, Forward)
            record.hold(slot.start, d, i.stage, live[i.stage], 0)
            live[i.stage] -= isinstance(i, (Backward, BackwardWeight))
            record.hold(slot.end, d, i.stage, live[i.stage], 0)
    return record


def words(record: PipelineRecord, device: int) -> str:
    """Write down what a device does, and how long it is idle in between."""
    mine = [slot for slot in record.slots if slot.device == device]
    first = min(slot.instruction.stage for slot in mine)
    found = [f"-{mine[0].start:g}"] if mine[0].start else []
    for slot, after in pairwise([*mine, None]):
        letter = LETTERS[type(slot.instruction)]
        if slot.instruction.stage > first:
            letter = letter.lower()
        found.append(f"{letter}{slot.instruction.micro}")
        if after is not None and after.start > slot.end:
            found.append(f"-{after.start - slot.end:g}")
    return " ".join(found)


def chart(name: str, chunks: int, p: int, m: int) -> dict[str, object]:
    """Give one chart: its rows, and the figures that stand below it."""
    record = played(SCHEDULES[name](p, m, chunks), chunks)
    return {
        "rows": [words(record, d) for d in range(p)],
        "end": record.makespan,
        "idle": round(record.idle_share, 4),
        "longest": record.longest_span,
        "held": [live / chunks for live in record.device_peak_live],
    }


def all_charts() -> dict[str, object]:
    """Give everything that the slider shows."""
    charts = {
        label: {
            f"{p} {m}": chart(name, chunks, p, m)
            for p in DEVICES
            for m in MICRO_BATCHES
        }
        for label, (name, chunks) in OFFERED.items()
    }
    return {
        "devices": DEVICES,
        "microBatches": MICRO_BATCHES,
        "stages": {label: chunks for label, (_, chunks) in OFFERED.items()},
        "charts": charts,
    }
