"""Figures of a run that fails and resumes, and of launchers.

Chapter: *many_machines*.
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import INK, PALE, arrow, box, canvas, device_color, styled


@styled
def save_fail_redo() -> Figure:
    """Draw training, saves, a failure, the restart and the repeated work over time."""
    figure, ax = canvas(6.8, 2.6, (-0.2, 17), (-1.35, 1.7))
    train, save, lost = device_color(0), device_color(1), "#CC3311"
    bars = (
        (0, 3.6, "train", train),
        (3.6, 0.6, "", save),
        (4.2, 3.6, "train", train),
        (7.8, 0.6, "", save),
        (8.4, 2.1, "lost", lost),
        (10.5, 1.8, "restart", PALE),
        (12.3, 2.1, "redo", train),
        (14.4, 1.5, "train", train),
        (15.9, 0.6, "", save),
    )
    for x, width, name, color in bars:
        hatch = "///" if name == "redo" else None
        style = {"fc": color, "ec": "white", "lw": 1.2, "hatch": hatch}
        ax.add_patch(Rectangle((x, 0), width, 0.8, **style))
        ink = INK if color == PALE else "white"
        pad = {"fc": color, "ec": "none", "pad": 1.5}
        middle = x + width / 2 + (0.15 if name == "restart" else 0)
        where = {"ha": "center", "va": "center", "size": 10, "bbox": pad}
        ax.text(middle, 0.4, name, color=ink, **where)
        if color == save:
            ax.text(middle, -0.12, "save", ha="center", va="top", size=9.5)
    spans = (
        (0, 3.6, "interval $\\tau$"),
        (3.6, 4.2, "$\\delta$"),
        (8.4, 10.5, "on average $\\tau$/2"),
        (10.5, 12.3, "$R$"),
    )
    for begin, end, name in spans:
        arrow(ax, (begin, 1.05), (end, 1.05), "|-|, widthA=0.3, widthB=0.3")
        ax.text((begin + end) / 2, 1.22, name, ha="center", size=10, color=INK)
    ax.plot(10.5, 0.4, "X", ms=13, color=INK, mec="white", zorder=5)
    ax.text(10.5, -0.12, "failure", ha="center", va="top", size=10.5, color=INK)
    arrow(ax, (12.3, -0.05), (8.4, -0.5), connectionstyle="arc3,rad=-0.24")
    ax.text(10.35, -0.98, "resume from the last save", ha="center", size=9.5, color=INK)
    arrow(ax, (0, -1.2), (16.8, -1.2))
    ax.text(16.8, -1.15, "time", ha="right", va="bottom", size=10, color=INK)
    return figure


@styled
def launchers_and_rendezvous() -> Figure:
    """Draw two machines, each with a launcher that starts two ranks."""
    figure, ax = canvas(6.8, 3.1, (-0.1, 10.3), (-0.1, 5.2))
    for machine, left in enumerate((0.0, 5.6)):
        box(ax, (left, 0), (4.6, 3.7), "", PALE)
        ax.text(left + 2.3, 0.12, f"machine {machine}", ha="center", size=10.5)
        for local in range(2):
            x, rank = left + 0.25 + 2.1 * local, 2 * machine + local
            words = f"rank {rank} of 4\nlocal rank {local}\nGPU {local}"
            box(ax, (x, 0.5), (2.0, 1.4), words, device_color(rank))
            arrow(ax, (left + 2.3, 2.55), (x + 1, 1.9))
        box(ax, (left + 0.5, 2.55), (3.6, 0.8), "launcher", "white", edge=INK)
    box(ax, (3.2, 4.3), (3.8, 0.8), "rendezvous 10.0.0.1:29500", "white", edge=INK)
    arrow(ax, (2.3, 3.35), (3.9, 4.3), "<|-|>")
    arrow(ax, (7.9, 3.35), (6.3, 4.3), "<|-|>")
    return figure
