"""Figures of the frameworks' own tools: DDP, MirroredStrategy, Horovod.

Chapters: *built_in*, *tensorflow*, *horovod*.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import INK, PALE, arrow, box, canvas, device_color, styled


@styled
def ddp_hooks() -> Figure:
    """Draw one step of DDP: buckets fill during backward and are all-reduced."""
    figure, ax = canvas(4.1, 3.6, (-2.75, 13.35), (-0.25, 4.95))
    for y, slow in ((4, 1.0), (3, 1.08)):  # rank 1 is a little slower
        _bar(ax, 0, y, 2.4 * slow, "forward")
        for i, layer in enumerate((4, 3, 2, 1)):
            color = device_color(i // 2)
            _bar(ax, (2.4 + 1.5 * i) * slow, y, 1.5 * slow, f"{layer}", color)
        _bar(ax, 11.9, y, 1.4, "step")
    # A bucket ends where it is complete; its all-reduce begins there.
    for bucket, (complete, end) in enumerate(((5.83, 8.3), (9.07, 11.84))):
        color, left = device_color(bucket), complete - 2.04
        for i in (2 * bucket, 2 * bucket + 1):
            at = left + 0.12 + 0.9 * (i % 2)
            box(ax, (at, 1.58), (0.9, 0.64), f"g{4 - i}", color, size=9)
            arrow(ax, ((3.9 + 1.5 * i) * 1.08, 2.68), (at + 0.45, 2.3))
        edge = Rectangle((left, 1.52), 2.04, 0.76, fill=False, ec=INK, lw=1.3)
        ax.add_patch(edge)
        name = f"bucket {bucket + 1}"
        box(ax, (complete, 0.48), (end - complete, 0.64), name, color, size=9)
        ax.text(
            left - 0.15, 1.9, name[-1], ha="right", va="center", size=9.5, color=INK
        )
    ax.plot((9.07, 9.07), (-0.2, 1.46), color=INK, ls=":", lw=1.2)
    words = "hidden behind the\nbackward pass"
    ax.text(8.9, 0.3, words, ha="right", va="top", size=9.5, color=INK)
    ax.text(9.24, 0.3, "exposed", va="top", size=9.5, color=INK)
    for y in (4, 3):
        ax.text(10.7, y, "idle", ha="center", va="center", size=9.5, color=INK)
    words = "backward pass,\nlayers 4 to 1"
    ax.text(5.4, 4.4, words, ha="center", size=9.5, color=INK)
    names = (
        (4, "rank 0"), (3, "rank 1"), (1.9, "rank 1's\nbuckets"), (0.8, "all-reduce"),
    )  # fmt: skip
    for at, name in names:
        ax.text(-0.2, at, name, ha="right", va="center", size=9.5, color=INK)
    ax.text(0, -0.02, "time", ha="left", va="center", size=9.5, color=INK)
    arrow(ax, (1.5, -0.02), (3.1, -0.02))
    return figure


def _bar(
    ax: Axes, x: float, y: float, width: float, words: str, color: str = PALE
) -> None:
    """Draw a box that begins at x and whose middle is at the height y."""
    box(ax, (x, y - 0.32), (width, 0.64), words, color)


@styled
def mirrored_step() -> Figure:
    """Draw one step on two devices: partial gradients summed, and means averaged."""
    figure, ax = canvas(8, 4.8, (-0.05, 10.9), (-1.6, 3.3))
    panels = (
        ((2.0, 1.1), "sum of losses\n/ 28", "partial\ngradient", "SUM"),
        ((-0.3, -1.2), "mean over\n14", "gradient of\nthe mean", "MEAN"),
    )
    for rows, loss, gradient, operation in panels:
        middle = sum(rows) / 2
        _bar(ax, 0, middle, 1.35, "batch\n28")
        box(ax, (7.1, rows[1] - 0.3), (1.5, 1.7), f"all-reduce\n{operation}")
        for device, y in enumerate(rows):
            color = device_color(device)
            _bar(ax, 1.8, y, 1.1, "shard\n14", color)
            _bar(ax, 3.2, y, 1.9, loss, color)
            _bar(ax, 5.4, y, 1.4, gradient, color)
            _bar(ax, 8.9, y, 1.9, "update its\nown copy", color)
            arrow(ax, (1.35, middle + (y - middle) * 0.3), (1.8, y))
            for begin, end in ((2.9, 3.2), (5.1, 5.4), (6.8, 7.1), (8.6, 8.9)):
                arrow(ax, (begin, y), (end, y))
    titles = (
        (2.72, "a loop of your own with MirroredStrategy"),
        (0.32, "fit, and DDP of PyTorch"),
    )
    for y, words in titles:
        ax.plot((0, 10.8), (y, y), color=INK, lw=1)
        ax.text(0, y + 0.1, words, size=10, color=INK)
    return figure


@styled
def horovod_step() -> Figure:
    """Draw a script on two ranks, with the numbers of Horovod's six changes."""
    figure, ax = canvas(8, 3.2, (-0.05, 11.15), (0.3, 3.4))
    shared = (
        (1.45, 1.15, "5\nbroadcast"),
        (6.3, 1.65, "4 wrapped\noptimizer:\nmean of the\ngradients"),
    )
    for left, width, words in shared:
        box(ax, (left, 0.45), (width, 2.1), words, size=9.5)
    for rank, y in ((0, 2.2), (1, 0.8)):
        color = device_color(rank)
        _bar(ax, 0, y, 1.2, "1 init,\n2 GPU", color)
        _bar(ax, 2.85, y, 1.5, "its own\nexamples", color)
        _bar(ax, 4.6, y, 1.45, "forward,\nbackward", color)
        _bar(ax, 8.2, y, 1.4, "3 update,\nlr × size", color)
        for begin, end in ((1.2, 1.45), (2.6, 2.85), (4.35, 4.6), (6.05, 6.3)):
            arrow(ax, (begin, y), (end, y))
        arrow(ax, (7.95, y), (8.2, y))
        ax.text(0, y + 0.42, f"rank {rank}", size=9.5, color=INK)
    _bar(ax, 9.85, 2.2, 1.25, "6 save")
    arrow(ax, (9.6, 2.2), (9.85, 2.2))
    ax.plot((2.85, 9.6), (3.0, 3.0), color=INK, lw=1)
    ax.text(6.2, 3.1, "every step", ha="center", size=10, color=INK)
    return figure


@styled
def horovod_cycles() -> Figure:
    """Draw two cycles: what all ranks have is released, and fused if it is several."""
    figure, ax = canvas(8, 3.0, (-0.45, 2.8), (0.05, 3.65))
    ready = ((0.3, 0.7, 1.5, 1.85), (0.5, 1.2, 1.6, 1.9))
    for rank, ends in enumerate(ready):
        y, begin = 2.6 - rank, 0.0
        for layer, end in zip((4, 3, 2, 1), ends, strict=True):
            _bar(ax, begin, y, end - begin, f"g{layer}", device_color(rank))
            begin = end
    _bar(ax, 1.0, 0.6, 0.35, "g4")
    _bar(ax, 2.0, 0.6, 0.75, "g3 g2 g1, fused")
    for cycle, words in ((1, "both ranks have g4"), (2, "both have g3, g2, g1")):
        ax.plot((cycle, cycle), (0.1, 3.05), color=INK, ls=":", lw=1.3)
        ax.text(cycle + 0.02, 3.12, f"cycle ends:\n{words}", size=9.5, color=INK)
    names = ((2.6, "rank 0"), (1.6, "rank 1"), (0.6, "all-reduces"))
    for y, name in names:
        ax.text(-0.05, y, name, ha="right", va="center", size=10, color=INK)
    ax.text(0, 3.12, "gradients\nbecome ready", size=9.5, color=INK)
    return figure
