"""A map of the library, and the calls of a traced step. Chapter: *read_the_library*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .style import PALE, arrow, box, canvas, device_color, styled, subplots

_BOXES = {  # name: (x, y, width, text, color or None for gray)
    "you": (3.0, 5.0, 3.0, "train_batch\nparallel/data, parallel/step", 0),
    "models": (0.0, 3.4, 2.5, "forward, loss\nmodels/networks", None),
    "group": (3.0, 3.4, 3.0, "all-reduce: a group's engine\ncomm/group", 1),
    "optimizers": (6.5, 3.4, 2.5, "update\noptimizers", None),
    "plans": (6.5, 1.8, 2.5, "rounds of a ring, ...\nplans/", 4),
    "events": (0.0, 1.8, 2.5, "phases, transfers\nevents", None),
    "contract": (3.0, 1.8, 3.0, "the contract\nbackends/", 2),
    "framework": (3.0, 0.2, 3.0, "NumPy, PyTorch,\nMXNet, Paddle", None),
    "observers": (0.0, 0.2, 2.5, "ledger, timeline\nobserve/", None),
}
_ARROWS = (  # from, to: points of the boxes' edges
    ((4.5, 5.0), (4.5, 4.3)),
    ((3.4, 5.0), (1.6, 4.3)),
    ((5.6, 5.0), (7.4, 4.3)),
    ((4.5, 3.4), (4.5, 2.7)),
    ((2.0, 3.4), (3.3, 2.7)),
    ((7.0, 3.4), (5.7, 2.7)),
    ((6.0, 3.5), (7.3, 2.7)),
    ((3.2, 3.4), (1.9, 2.7)),
    ((4.5, 1.8), (4.5, 1.1)),
    ((1.25, 1.8), (1.25, 1.1)),
)


@styled
def library_map() -> Figure:
    """Draw the parts that a step of data parallelism enters, from caller to called."""
    figure, ax = canvas(8, 4.6, (-0.05, 9.05), (0.1, 6.0))
    for x, y, width, words, color in _BOXES.values():
        face = PALE if color is None else device_color(color)
        box(ax, (x, y), (width, 0.9), words, face)
    for start, end in _ARROWS:
        arrow(ax, start, end)
    return figure


@styled
def traced_step(
    marks: Mapping[str, Sequence[tuple[int, str]]], rows: Sequence[str]
) -> Figure:
    """Draw the calls of a traced step, one row per file, from its phases' marks.

    `marks`: for each phase, the (place in the trace, row) of its calls.
    """
    figure, (ax,) = subplots(1, 1, 6.6, 4.4)
    for phase, points in marks.items():
        places = [at for at, _ in points]
        heights = [rows.index(row) for _, row in points]
        label = f"{phase}: {len(points)} calls"
        ax.plot(places, heights, "|", ms=7, mew=1.5, label=label)
    called = {row for points in marks.values() for _, row in points}
    for height, row in enumerate(rows):
        if row not in called:
            words = "no calls: its rounds were cached in step 1"
            ax.text(2, height, words, va="center", fontsize=8)
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.4, 1), frameon=False)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.7)
    ax.set(xlabel="calls of the library's functions, in order")
    ax.grid(False)
    return figure
