"""Figures of a pipeline, drawn from the trace of what ran.

One row per device, one box per computation with the number of its micro-batch; empty
means idle. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

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

from .style import INK, arrow, canvas, device_color, styled, subplots

# The name, the color, and the color of the text.
_KINDS: dict[type[Instruction], tuple[str, str, str]] = {
    Forward: ("forward", "#56B4E9", INK),
    Backward: ("backward", "#0072B2", "white"),
    BackwardInput: ("backward, input", "#D55E00", "white"),
    BackwardWeight: ("backward, weights", "#F0E442", INK),
}


@styled
def naive_and_gpipe(devices: int = 4, micro_batches: int = 4) -> Figure:
    """Draw one batch through the stages, first whole and then in micro-batches.

    Both panels share one time axis, in slots: a slot is the forward pass of one
    micro-batch through one stage. A backward pass takes two.
    """
    m = micro_batches
    whole, cut = Durations(m, 2 * m, m, m), Durations(1, 2, 1, 1)
    panels = {
        "the whole batch at once": play_schedule(
            SCHEDULES["sequential"](devices, 1), whole
        ),
        f"GPipe, {micro_batches} micro-batches": play_schedule(
            SCHEDULES["gpipe"](devices, micro_batches), cut
        ),
    }
    figure, axes = subplots(2, 1, 7, 1.3 + 0.72 * devices, sharex=True)
    end = max(trace.makespan for trace in panels.values())
    for ax, (label, trace) in zip(axes, panels.items(), strict=True):
        _panel(ax, trace, end)
        slots, idle = trace.makespan, 100 * trace.idle_share
        ax.set_title(f"{label}: {slots:g} slots, {idle:.0f}% idle", loc="left")
        ax.set_yticklabels([f"device {d}: stage {d}" for d in range(devices)])
        ax.spines["bottom"].set_visible(ax is axes[-1])
        ax.tick_params(bottom=ax is axes[-1])
    axes[-1].set(xlim=(0, end), xlabel="time, in slots")
    handles = [
        Patch(color=color, label=f"{name} pass")
        for name, color, _ in (_KINDS[Forward], _KINDS[Backward])
    ]
    handles.append(Patch(fc="#EEEEEE", label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


@styled
def gantt(traces: Mapping[str, PipelineTrace]) -> Figure:
    """Draw the computations of every device, a panel per trace, on one time axis.

    The title of a panel has the idle share of the device time. Of several stages on a
    device, later ones have a dark lower edge.
    """
    rows = [trace.devices for trace in traces.values()]
    figure, axes = subplots(
        len(rows), 1, 7, 0.75 + sum(0.3 * n + 0.38 for n in rows),
        sharex=True, height_ratios=[n + 0.3 for n in rows],
    )  # fmt: skip
    end = max(trace.makespan for trace in traces.values())
    for ax, (label, trace) in zip(axes, traces.items(), strict=True):
        _panel(ax, trace, end)
        ax.set_title(f"{label}: {100 * trace.idle_share:.0f}% idle", loc="left")
    axes[-1].set(xlim=(0, end), xlabel="time, in slots of the modeled clock")
    used = {type(s.instruction) for t in traces.values() for s in t.spans}
    handles = [
        Patch(color=color, label=name)
        for kind, (name, color, _) in _KINDS.items()
        if kind in used
    ]
    handles.append(Patch(fc="#EEEEEE", label="idle"))
    if any(trace.stages > trace.devices for trace in traces.values()):
        handles.append(Patch(color=INK, label="of a later stage"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _panel(ax: Axes, trace: PipelineTrace, end: float) -> None:
    for d in range(trace.devices):
        ax.barh(d, trace.makespan, height=0.86, color="#EEEEEE")
    first: dict[int, int] = {}  # the earliest stage of every device
    for span in trace.spans:
        stage = first.get(span.device, span.instruction.stage)
        first[span.device] = min(stage, span.instruction.stage)
    spans: dict[tuple[float, float, str], list[tuple[float, float]]] = {}
    for span in trace.spans:
        _, color, ink = _KINDS[type(span.instruction)]
        length = span.end - span.start
        box = (span.start, length)
        spans.setdefault((span.device - 0.43, 0.86, color), []).append(box)
        if span.instruction.stage > first[span.device]:
            spans.setdefault((span.device + 0.29, 0.14, INK), []).append(box)
        if length / end > 0.008:  # there is room for a number
            center = {"ha": "center", "va": "center", "in_layout": False}
            size = 8 if length / end > 0.016 else 6
            x, text = span.start + length / 2, str(span.instruction.micro)
            ax.text(x, span.device, text, color=ink, size=size, **center)
    for (y, height, color), boxes in sorted(spans.items()):  # faster than one by one
        ax.broken_barh(boxes, (y, height), color=color, ec="white", lw=0.7)
    labels = [f"device {d}" for d in range(trace.devices)]
    ax.set_yticks(range(trace.devices), labels)
    ax.set_ylim(trace.devices - 0.5, -0.5)
    ax.spines["left"].set_visible(False)
    ax.tick_params(left=False)
    ax.grid(visible=False)


@styled
def live_activations(traces: Mapping[str, PipelineTrace]) -> Figure:
    """Draw the number of micro-batches that every device stores over time.

    A column per trace and a row per device: equal curves would hide each other.
    """
    rows = max(trace.devices for trace in traces.values())
    size = {"width": 7, "height": 0.6 + 0.62 * rows}
    shared = {"sharex": True, "sharey": True}
    figure, axes = subplots(rows, len(traces), **size, **shared)
    for column, (label, trace) in enumerate(traces.items()):
        for d in range(trace.devices):
            ax = axes[d * len(traces) + column]
            times, live, _ = zip(*trace.levels(d), strict=True)
            ax.fill_between(times, live, step="post", color=device_color(d))
            peak = f"at most {max(live)}"
            ax.text(1, 0.97, peak, ha="right", va="top", transform=ax.transAxes)
            ax.grid(alpha=0.3)
            if column == 0:
                ax.set_ylabel(f"device {d}", rotation=0, ha="right", va="center")
        axes[column].set_title(label, loc="left")
        axes[(rows - 1) * len(traces) + column].set_xlabel("time, in slots")
    end = max(trace.makespan for trace in traces.values())
    axes[0].set(xlim=(0, end), ylim=(0, None))
    axes[0].yaxis.get_major_locator().set_params(integer=True)
    return figure


@styled
def deadlock() -> Figure:
    """Draw the messages with which 1F1B deadlocks on four devices, if sends block.

    Every device is sending, so none receives. The last two send to each other.
    """
    figure, ax = canvas(7, 1.3, (-0.4, 3.4), (-0.5, 0.5))
    outputs = [(0, 1, "output 3"), (1, 2, "output 2"), (2, 3, "output 1")]
    for source, target, label in [*outputs, (3, 2, "gradient 0")]:
        below = -0.14 if target < source else 0.14 if source == 2 else 0
        way = target - source
        ends = (source + 0.24 * way, below), (target - 0.24 * way, below)
        arrow(ax, *ends, head=14, gap=2, lw=2, color="#D55E00")
        y, va = (below - 0.06, "top") if way < 0 else (below + 0.04, "bottom")
        ax.text((source + target) / 2, y, label, ha="center", va=va, size=10)
    for d in range(4):
        center = {"ha": "center", "va": "center", "size": 10, "color": INK}
        box = {"fc": "white", "ec": device_color(d), "lw": 2, "pad": 6}
        ax.text(d, 0, f"device {d}\nsends", bbox=box, **center)
    return figure
