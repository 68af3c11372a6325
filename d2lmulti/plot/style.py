"""Every picture of the book, drawn from a plan or a run; the only file with matplotlib.

Colours are Okabe and Ito's, which the colour-blind can tell apart; device i always has
colour i. Figures are drawn on white, and the page gives them a card in dark mode.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from ..plans.rounds import Round

if TYPE_CHECKING:
    from ..training.history import History

COLOURS = (
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


def device_colour(i: int) -> str:
    """Colour of device i, the same in every figure."""
    return COLOURS[i % len(COLOURS)]


def _figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(
        1, columns, figsize=(width, height), squeeze=False, layout="constrained"
    )
    return figure, list(axes[0])


def _blank(ax: Axes, width: float, height: float, title: str) -> None:
    ax.set_xlim(0, width)
    ax.set_ylim(0, height)
    ax.set_aspect("equal")
    ax.axis("off")
    ax.set_title(title, size=11, color=INK)


def plan_rounds(plan: Iterable[Round], ranks: int, title: str = "") -> Figure:
    """Draw each round of a plan: an arrow a transfer, solid to add, dashed to copy."""
    rounds = list(plan)
    columns = min(len(rounds), 3)  # more in a row would be too small to read
    lines = -(-len(rounds) // columns)
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(1 + 3.1 * columns, (0.75 + 0.5 * ranks) * lines),
        squeeze=False,
        layout="constrained",
    )
    for ax in grid.flat[len(rounds) :]:
        ax.axis("off")
    axes = grid.flat[: len(rounds)]
    for number, (ax, this_round) in enumerate(zip(axes, rounds, strict=True), 1):
        _blank(ax, 4, ranks + 0.1, f"{title} round {number}".strip())
        for rank in range(ranks):
            y = ranks - rank - 0.5
            for x in (0.7, 3.3):
                ax.plot(x, y, "o", ms=17, color=device_colour(rank))
                ink = INK if rank in (1, 4, 6) else "white"
                ax.text(x, y, str(rank), ha="center", va="center", color=ink, size=9)
        for transfer in this_round:
            start = (0.98, ranks - transfer.source - 0.5)
            end = (3.02, ranks - transfer.target - 0.5)
            arrow = FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=12,
                lw=1.6,
                color=device_colour(transfer.source),
                ls="-" if transfer.add else (0, (4, 2)),
            )
            ax.add_patch(arrow)
        kinds = {"added" if t.add else "copied" for t in this_round}
        ax.text(2, -0.12, " and ".join(sorted(kinds)), ha="center", size=9, color=INK)
        ax.set_ylim(-0.3, ranks + 0.1)
    return figure


def learning_curve(histories: Mapping[str, History]) -> Figure:
    """Draw training loss and test accuracy by epoch, one line a history."""
    figure, (loss, accuracy) = _figure(8, 3, 2)
    styles = ("-", "--", "-.", ":")
    for i, (label, history) in enumerate(histories.items()):
        line = {"color": device_colour(i), "ls": styles[i % 4], "label": label}
        epochs = range(1, len(history.epochs) + 1)
        loss.plot(epochs, history.losses, marker=".", **line)
        accuracy.plot(epochs, history.accuracies, marker=".", **line)
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    accuracy.set(xlabel="epoch", ylabel="test accuracy")
    for ax in (loss, accuracy):
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    accuracy.legend(frameon=False)
    return figure


def log_lines(
    x: Sequence[float], lines: Mapping[str, Sequence[float]], xlabel: str, ylabel: str
) -> Figure:
    """Draw one line a label over `x`, both axes logarithmic."""
    figure, (ax,) = _figure(7, 3.6)
    styles = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
    for i, (label, y) in enumerate(lines.items()):
        ax.plot(x, y, color=device_colour(i), ls=styles[i % 5], label=label, lw=1.8)
    ax.set(xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    from ..files.atomic import write_atomically

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())
    plt.close(figure)
