"""Figures of timelines, measured or modeled: a row per track, a color per name.

Chapters: *bottlenecks*, *allreduce*, *sharding*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from d2lmulti.observe.timeline import Timeline

from .style import device_color, styled, subplots

_IDLE = ("wait", "idle")  # drawn in gray


@styled
def timelines(
    panels: Mapping[str, Timeline],
    *,
    end: float | None = None,
    measured: bool = True,
    width: float = 9.0,
) -> Figure:
    """Draw one panel per timeline, with the same time axis and the same colors.

    Nothing after `end`, in seconds, is drawn; the axis has milliseconds. With
    `measured=False` the label of the axis says that the clock was a model.
    """
    rows = [len(t.tracks) for t in panels.values()]
    figure, axes = subplots(
        len(panels), 1, width, 0.9 + sum(0.42 * n + 0.35 for n in rows),
        sharex=True, height_ratios=[n + 0.6 for n in rows],
    )  # fmt: skip
    if end is None:
        end = max(t.end for t in panels.values())
    names = dict.fromkeys(name for t in panels.values() for name in t.names)
    work = [name for name in names if name not in _IDLE]
    colors = {name: device_color(i) for i, name in enumerate(work)}
    colors |= {name: "#DDDDDD" for name in names if name in _IDLE}
    scale = 1e3  # milliseconds
    for ax, (label, t) in zip(axes, panels.items(), strict=True):
        for row, track in enumerate(t.tracks):
            for name in t.names:
                bars = [
                    (scale * s.begin, scale * (s.end - s.begin))
                    for s in t.spans
                    if (s.track, s.name) == (track, name) and s.begin < end
                ]
                ax.broken_barh(
                    bars, (row - 0.38, 0.76), color=colors[name], ec="white", lw=0.5
                )
        ax.set_yticks(range(len(t.tracks)), t.tracks)
        ax.set_ylim(len(t.tracks) - 0.5, -0.5)
        ax.set_title(label, loc="left")
        ax.grid(visible=False)
        ax.spines["left"].set_visible(False)
    axes[-1].set_xlim(0, scale * end)
    axes[-1].set_xlabel("ms" if measured else "modeled ms")
    handles = [Patch(color=color, label=name) for name, color in colors.items()]
    columns = 6 if width > 6 else 3
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


def from_step(t: Timeline, step: int) -> Timeline:
    """Return the part of a timeline from the device's wait for that step on."""
    out = Timeline()
    zero = [span.begin for span in t.spans if span.name == "wait"][step]
    for track, name, begin, end in t.spans:
        out.add(track, name, begin - zero, end - zero)
    return out


@styled
def utilization(
    panels: Mapping[str, tuple[Timeline, Sequence[float]]], window: float
) -> Figure:
    """Draw when a device computed, and the utilization that a tool shows.

    Each panel has a timeline, and the share of every `window` of seconds.
    """
    figure, axes = subplots(len(panels), 1, 4.6, 0.8 + 1.6 * len(panels), sharex=True)
    for ax, (label, (t, shares)) in zip(axes, panels.items(), strict=True):
        spans = [(s.begin, s.end - s.begin) for s in t.spans if s.name == "compute"]
        ax.broken_barh(spans, (0, 100), color="#9CC7E4", label="the device computes")
        edges = [i * window for i in range(len(shares) + 1)]
        percent = [100 * share for share in shares]
        ax.stairs(
            percent, edges, color=device_color(5), lw=2, label="what a tool shows"
        )
        ax.set_title(label, loc="left")
        ax.set(ylim=(0, 105), ylabel="%")
        ax.grid(visible=False)
    axes[-1].set_xlabel("seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure
