"""The charts that the book's schedule slider shows.

Every schedule is played on the modeled clock, messages counted, for each number of
devices and micro-batches that the slider offers. A device is a line of words: `F0` is
the forward pass of micro-batch 0, small letters are the device's later stage, `-1.5` is
idle for 1.5 slots. _extra/chart/schedule_slider.js draws what stands there.
"""

from __future__ import annotations

from itertools import pairwise

from d2lmulti.observe.pipeline_trace import PipelineTrace, play_schedule
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Durations,
    Forward,
    Instruction,
)
from d2lmulti.plans.schedules import SCHEDULES

DEVICES = (2, 3, 4, 8)
MICRO_BATCHES = (1, 2, 4, 8, 16)
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


def held(trace: PipelineTrace, device: int) -> int:
    """Count the most micro-batches that a device stores at once, stage by stage."""
    live = most = 0
    for span in trace.spans:
        if span.device == device:
            live += isinstance(span.instruction, Forward)
            most = max(most, live)
            live -= isinstance(span.instruction, (Backward, BackwardWeight))
    return most


def words(trace: PipelineTrace, device: int) -> str:
    """Write down what a device does, and how long it is idle in between."""
    mine = [span for span in trace.spans if span.device == device]
    first = min(span.instruction.stage for span in mine)
    found = [f"-{mine[0].start:g}"] if mine[0].start else []
    for span, after in pairwise([*mine, None]):
        letter = LETTERS[type(span.instruction)]
        if span.instruction.stage > first:
            letter = letter.lower()
        found.append(f"{letter}{span.instruction.micro}")
        if after is not None and after.start > span.end:
            found.append(f"-{after.start - span.end:g}")
    return " ".join(found)


def chart(name: str, chunks: int, p: int, m: int) -> dict[str, object]:
    """Give one chart: its rows, and the figures that stand below it."""
    times = (slots / chunks for slots in (1, 2, 1, 1))  # a stage is 1 / chunks as long
    trace = play_schedule(SCHEDULES[name](p, m, chunks), Durations(*times))
    return {
        "rows": [words(trace, d) for d in range(p)],
        "end": trace.makespan,
        "idle": trace.idle_share,
        "longest": trace.longest_span,
        "held": [held(trace, d) / chunks for d in range(p)],
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
