"""The style and the elements of all figures, and figures of several chapters.

Colors are those of Okabe and Ito, which color-blind readers can distinguish; device i
has color i in every figure. Figures have a white background.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from d2lmulti.plans.rounds import Round

if TYPE_CHECKING:
    from d2lmulti.training.history import History

COLORS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)
INK = "#222222"
PALE = "#DDDDDD"  # what is idle, or the same on every device
Point = tuple[float, float]
styled = plt.rc_context(  # `@styled` decorates every function that draws a figure
    {
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlesize": 11,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
    }
)


def device_color(i: int) -> str:
    """Return the color of device i, the same in every figure."""
    return COLORS[i % len(COLORS)]


def subplots(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure, with width and height in inches, and its panels by row."""
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, height), squeeze=False, **options
    )
    return figure, list(axes.flat)


def without_frame(ax: Axes) -> None:
    """Remove lines and ticks from the axes; labels remain."""
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def canvas(
    width: float, height: float, xlim: Point, ylim: Point
) -> tuple[Figure, Axes]:
    """Return a figure, with width and height in inches, and a panel without axes."""
    figure, (ax,) = subplots(1, 1, width, height)
    ax.set(xlim=xlim, ylim=ylim)
    ax.axis("off")
    return figure, ax


def box(
    ax: Axes,
    corner: Point,
    sides: Point,
    words: str = "",
    color: str | tuple[float, float, float] = PALE,
    *,
    ink: str = "",
    edge: str = "white",
    size: float = 10,
    lw: float = 1.2,
) -> None:
    """Draw a box with text, which is white on the color of device 0."""
    ink = ink or ("white" if color == COLORS[0] else INK)
    ax.add_patch(Rectangle(corner, *sides, fc=color, ec=edge, lw=lw))
    x, y = corner[0] + sides[0] / 2, corner[1] + sides[1] / 2
    ax.text(x, y, words, ha="center", va="center", size=size, color=ink)


def arrow(
    ax: Axes,
    start: Point,
    end: Point,
    kind: str = "-|>",
    head: float = 10,
    gap: float = 0,
    **look: Any,
) -> None:
    """Draw an arrow from one point to another, with a gap in points at both ends."""
    look = {"color": INK, "lw": 1.2, "shrinkA": gap, "shrinkB": gap, **look}
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle=kind, mutation_scale=head, **look)
    )


def dot(ax: Axes, x: float, y: float, words: object, color: str, ms: float) -> None:
    """Draw a rank as a filled circle with its number, in points."""
    ax.plot(x, y, "o", ms=ms, color=color, zorder=3)
    ink = "white" if color == COLORS[0] else INK
    ax.text(x, y, str(words), ha="center", va="center", color=ink, size=9, zorder=4)


def device_patches(n: int) -> list[Patch]:
    """Return the legend entries of the devices' colors."""
    return [Patch(color=device_color(i), label=f"device {i}") for i in range(n)]


@styled
def plan_rounds(plan: Iterable[Round], ranks: int, title: str = "") -> Figure:
    """Draw each round of a plan: a solid arrow adds, a dashed arrow copies."""
    rounds = list(plan)
    columns = min(len(rounds), 3)  # more in a row would be too small to read
    lines = -(-len(rounds) // columns)
    width, height = 1 + 3.1 * columns, (0.75 + 0.5 * ranks) * lines
    figure, axes = subplots(lines, columns, width, height)
    for ax in axes:
        ax.axis("off")
    for number, (ax, this_round) in enumerate(zip(axes, rounds, strict=False), 1):
        ax.set(xlim=(0, 4), ylim=(-0.3, ranks + 0.1), aspect="equal")
        ax.set_title(f"{title} round {number}".strip())
        for rank in range(ranks):
            y = ranks - rank - 0.5
            for x in (0.7, 3.3):
                dot(ax, x, y, rank, device_color(rank), 17)
        for transfer in this_round:
            start = (0.98, ranks - transfer.source - 0.5)
            end = (3.02, ranks - transfer.target - 0.5)
            color = device_color(transfer.source)
            dash = "-" if transfer.add else (0, (4, 2))
            arrow(ax, start, end, head=12, gap=2, color=color, lw=1.6, ls=dash)
        kinds = {"added" if t.add else "copied" for t in this_round}
        ax.text(2, -0.12, " and ".join(sorted(kinds)), ha="center", size=9, color=INK)
    return figure


@styled
def learning_curve(histories: Mapping[str, History]) -> Figure:
    """Draw training loss and test accuracy by epoch, one line per history."""
    figure, (loss, accuracy) = subplots(1, 2, 8, 3)
    styles = ("-", "--", "-.", ":")
    for i, (label, history) in enumerate(histories.items()):
        line = {"color": device_color(i), "ls": styles[i % 4], "label": label}
        epochs = range(1, len(history.epochs) + 1)
        loss.plot(epochs, history.losses, marker=".", **line)
        accuracy.plot(epochs, history.accuracies, marker=".", **line)
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    accuracy.set(xlabel="epoch", ylabel="test accuracy")
    for ax in (loss, accuracy):
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(alpha=0.3)
    accuracy.legend()
    return figure


@styled
def log_lines(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    xlabel: str,
    ylabel: str,
    xscale: str = "log",
) -> Figure:
    """Draw one line per label over `x`, with a logarithmic vertical axis."""
    figure, (ax,) = subplots(1, 1, 7, 3.6)
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for i, (label, y) in enumerate(lines.items()):
        ax.plot(x, y, color=device_color(i), ls=styles[i % 5], label=label, lw=1.8)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale=xscale, yscale="log")
    ax.grid(alpha=0.3)
    ax.legend()
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    from d2lmulti.files import write_atomically

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())
    plt.close(figure)
