"""Figures of ring attention: the moving blocks, and the scores that are needed.

Chapter: *long_sequences*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .style import (
    INK,
    arrow,
    box,
    canvas,
    device_color,
    styled,
    subplots,
    without_frame,
)

_EMPTY = "#EEEEEE"


@styled
def needed_scores(orders: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Draw, for every rank and step of a ring, which scores of its block are needed.

    `orders` gives the positions of every rank's tokens, one list for each way to
    distribute them. A block has a row for each query of the rank and a column for each
    key of the received block; a score is colored if its key is not later than its
    query. Above each column is the largest percentage that a rank needs.
    """
    figure, axes = subplots(1, len(orders), 1.36 * len(orders), 2.1)
    for ax, (order, at) in zip(axes, orders.items(), strict=True):
        n = len(at)
        needed = [
            [at[r - step] <= at[r][:, None] for step in range(n)] for r in range(n)
        ]
        for r, row in enumerate(needed):
            shades = ListedColormap([_EMPTY, device_color(r)])
            for step, mask in enumerate(row):
                where = (step + 0.04, step + 0.96, r + 0.96, r + 0.04)
                ax.imshow(mask, shades, vmin=0, vmax=1, extent=where)
        slowest = [max(row[step].mean() for row in needed) for step in range(n)]
        for step, share in enumerate(slowest):
            label = f"{100 * share:.0f}"
            ax.text(step + 0.5, -0.12, label, ha="center", size=9, color=INK)
        ax.set(xlim=(0, n), ylim=(n, -0.6))
        ax.set_title(order, size=10)
        ax.set_xticks(np.arange(n) + 0.5, range(1, n + 1), size=9)
        ax.set_xlabel("step", size=9)
        ax.set_yticks(np.arange(n) + 0.5, range(n), size=9)
        without_frame(ax)
    axes[0].set_ylabel("rank", size=9)
    return figure


@styled
def ring_of_keys(backward: bool = False, ranks: int = 4) -> Figure:
    """Draw one step of ring attention: queries stay, keys and values move on.

    In the backward pass, the gradients of the keys and values move with them. The
    second step is drawn: every rank holds the block of its predecessor, in the color of
    the rank that owns its tokens.
    """
    stays, moves, grows = "Q", "K, V", "output"
    if backward:
        stays, moves, grows = "Q, dQ", "K, V, dK, dV", "gradient"
    figure, ax = canvas(4.6, 3.3, (-2.42, 2.42), (-1.65, 1.82))
    turns = np.pi / 2 - 2 * np.pi * np.arange(ranks) / ranks
    centers = np.column_stack([1.5 * np.cos(turns), 1.2 * np.sin(turns)])
    half = np.array([0.86, 0.36])  # of a rank's two boxes
    for rank, center in enumerate(centers):
        owner = (rank - 1) % ranks
        x, y = center - half
        card = (2 * half[0], half[1] - 0.02)
        box(ax, (x, y), card, f"{moves} of {owner}", device_color(owner), size=9)
        top = (x, y + half[1] + 0.02)
        box(ax, top, card, f"{stays} of {rank}", device_color(rank), size=9)
        ax.text(*center + [0, 0.42], f"rank {rank}", ha="center", size=9, color=INK)
        after = centers[(rank + 1) % ranks]
        middle = (center + after) * [0.76, 0.6] + [0, 0.09]  # outside the boxes
        along = (after - center) * 0.14
        arrow(ax, middle - along, middle + along, lw=1.6)
    words = f"queries stay,\ntheir {grows}\ngrows"
    ax.text(0, 0, words, ha="center", va="center", size=9, color=INK)
    ax.set_aspect("equal")
    return figure


@styled
def heads_for_tokens(ranks: int = 4) -> Figure:
    """Draw Ulysses: all heads of some tokens, all tokens of some heads, and back.

    A square has a row for each rank's tokens and a column for each rank's heads, in the
    color of the rank that holds them. A dot marks what the all-to-all does not move.
    """
    step = 1.52 * ranks
    figure, ax = canvas(4.8, 1.7, (-0.9, 2 * step + ranks), (ranks + 1, -0.9))
    titles = ("own tokens", "own heads: attention", "own tokens")
    for panel, title in enumerate(titles):
        left = panel * step
        for token in range(ranks):
            for head in range(ranks):
                owner = head if panel == 1 else token
                dot = "•" if token == head else ""
                box(ax, (left + head, token), (1, 1), dot, device_color(owner))
        for y, words in ((-0.5, title), (ranks + 0.6, "heads")):
            ax.text(left + ranks / 2, y, words, ha="center", va="center", size=9)
        if panel:
            gap = step - ranks
            ax.text(left - gap / 2, ranks / 2 - 0.3, "all-to-all", ha="center", size=9)
            arrow(ax, (left - gap + 0.2, ranks / 2), (left - 0.2, ranks / 2))
    ax.text(-0.5, ranks / 2, "tokens", rotation=90, ha="center", va="center", size=9)
    ax.set_aspect("equal")
    return figure
