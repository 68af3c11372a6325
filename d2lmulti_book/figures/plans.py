"""Figures of plans: the partial sums of each rank after each round.

The states come from `plans/verify.py`, so they are those of the plans that train.
Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from d2lmulti.plans.rounds import Round
from d2lmulti.plans.verify import snapshots

from .style import INK, arrow, box, device_color, dot, styled, subplots

COMPLETE = "#009E73"
# From one contribution to all but one: from light to dark, also in print.
_PARTIAL = ((0.86, 0.92, 0.96), (0.0, 0.45, 0.70))


def held_text(held: np.ndarray) -> str:
    """Name a partial sum by its ranks: `013` is the sum of ranks 0, 1 and 3.

    All ranks give `all`, none an empty text; more than ten are separated by commas.
    """
    ranks = np.flatnonzero(held).tolist()
    if len(ranks) == len(held) > 1:
        return "all"
    return ("" if len(held) <= 10 else ",").join(map(str, ranks))


def held_color(held: np.ndarray) -> tuple[float, float, float] | str:
    """Return the color of a partial sum: darker with more ranks, green if complete."""
    count = int((held > 0).sum())
    if count == len(held) > 1:
        return COMPLETE
    if not count:
        return "white"
    share = (count - 1) / max(len(held) - 2, 1)
    light, dark = _PARTIAL
    red, green, blue = (a + share * (b - a) for a, b in zip(light, dark, strict=True))
    return red, green, blue


def dark(color: tuple[float, float, float] | str) -> bool:
    """Return whether this color needs white text."""
    if isinstance(color, str):
        return color == COMPLETE
    return float(np.dot(color, (0.3, 0.6, 0.1))) < 0.55


@styled
def plan_states(
    rounds: Iterable[Round],
    ranks: int,
    length: int,
    title: str = "",
    collective: str = "allreduce",
    columns: int = 4,
) -> Figure:
    """Draw every rank's vector before the first round and after each round.

    A row is a rank (with its number on the right), a cell a part of its vector; the
    text names the ranks whose contributions are in it. Framed cells were written in
    this round, and arrows show the sources; a solid line adds, a dashed one copies.
    """
    table = list(rounds)
    edges, frames = snapshots(table, ranks, length, collective)
    lines = -(-len(frames) // columns)
    columns = min(columns, len(frames))
    height = lines * (0.55 + 0.36 * ranks)
    figure, axes = subplots(lines, columns, 2.3 * columns, height)
    for ax in axes:
        ax.axis("off")
    for number, (ax, held) in enumerate(zip(axes, frames, strict=False)):
        ax.set_title(f"round {number}" if number else "start", size=10)
        _draw_vectors(ax, edges, held)
        if number:
            _draw_transfers(ax, table[number - 1], edges, ranks)
    if title:
        figure.suptitle(title, size=11, color=INK)
    return figure


def _draw_vectors(ax: Axes, edges: np.ndarray, held: np.ndarray) -> None:
    ranks, length = len(held), edges[-1]
    for rank in range(ranks):
        y = ranks - 1 - rank
        ax.text(1.03 * length, y + 0.4, str(rank), va="center", size=9, color=INK)
        pieces = zip(edges[:-1], edges[1:], held[rank], strict=True)
        for first, last, inside in pieces:
            color, text = held_color(inside), held_text(inside)
            # A character takes a twentieth of the vector at size 8.
            size = min(10.0, 8 * 18 * (last - first) / length / max(len(text), 1))
            ink = "white" if dark(color) else INK
            cell = (first, y), (last - first, 0.8)
            box(ax, *cell, text, color, ink=ink, edge="#999999", size=size, lw=0.6)
    ax.set(xlim=(-0.32 * length, 1.1 * length), ylim=(-0.15, ranks))


def _draw_transfers(ax: Axes, this_round: Round, edges: np.ndarray, ranks: int) -> None:
    for t in this_round:
        line = "-" if t.add else (0, (3, 1.5))
        start, end = (ranks - 1 - rank for rank in (t.source, t.target))
        written = (t.target_first, end), t.length, 0.8
        ax.add_patch(Rectangle(*written, fill=False, ec=INK, lw=1.8, ls=line))
        x = -0.03 * edges[-1]
        bend = f"arc3,rad={0.5 if t.target > t.source else -0.5}"
        look: dict[str, Any] = {"ls": line, "color": "#666666", "lw": 1.1}
        ends = (x, start + 0.2), (x, end + 0.6)  # out below, in above
        arrow(ax, *ends, head=7, gap=2, connectionstyle=bend, **look)


@styled
def star_and_ring(ranks: int = 4) -> Figure:
    """Draw which rank sends when, in a star and in a ring, on one time axis."""
    figure, axes = subplots(
        2, 2, 8, 4.4, gridspec_kw={"width_ratios": (1, 2.1)}, sharex="col"
    )
    star = [(r, 0, float(r - 1)) for r in range(1, ranks)]
    star += [(0, r, float(ranks + r - 2)) for r in range(1, ranks)]
    steps = range(2 * (ranks - 1))
    ring = [(r, (r + 1) % ranks, step / ranks) for step in steps for r in range(ranks)]
    for row, (name, transfers, size) in enumerate(
        (("Star", star, 1.0), ("Ring", ring, 1 / ranks))
    ):
        links, times = axes[2 * row : 2 * row + 2]
        links.set(xlim=(-1.5, 1.5), ylim=(-1.35, 1.35), aspect="equal")
        links.axis("off")
        links.set_title(f"{name}: links in the first step")
        angle = np.pi / 2 + 2 * np.pi * np.arange(ranks) / ranks
        place = np.column_stack((-np.cos(angle), np.sin(angle)))
        for source, target, start in transfers:
            if row == 0 and not source:
                continue  # the same link, the other way
            look: dict[str, Any] = {"color": "#999999", "ls": (0, (3, 2)), "zorder": 1}
            if start == 0:
                look = {"lw": 2.2, "zorder": 2}
            arrow(links, place[source], place[target], head=14, gap=13, **look)
        for rank, (x, y) in enumerate(place):
            dot(links, x, y, rank, device_color(rank), 21)
        for source, _, start in transfers:
            bar = {"color": device_color(source), "ec": "white", "height": 0.8}
            times.barh(source, size, left=start, **bar)
        total = 2 * (ranks - 1) * size
        times.set_title(f"Who sends when (finished at {total:g})", loc="left")
        ticks = {"yticks": range(ranks), "ylim": (ranks - 0.5, -0.5)}
        times.set(**ticks, yticklabels=[f"rank {r}" for r in range(ranks)])
        times.tick_params(axis="y", length=0)
    axes[3].set_xlabel("time, in transfers of a whole vector")
    return figure


@styled
def two_levels(nodes: int = 2, per_node: int = 4) -> Figure:
    """Draw the three phases of a hierarchical all-reduce; a color is a part."""
    titles = (
        "1. reduce-scatter inside",
        "2. all-reduce across, per part",
        "3. all-gather inside",
    )
    figure, axes = subplots(1, 3, 8, 2.9, sharey=True)
    for phase, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        ax.axis("off")
        ax.set(xlim=(-0.7, 1.7), ylim=(per_node - 0.4, -1.2))
        ax.set_title(title)
        for node in range(nodes):
            frame = (node - 0.42, -0.5), 0.84, per_node
            ax.add_patch(Rectangle(*frame, fc="#EEEEEE", ec="none", zorder=0))
            ax.text(node, -0.65, f"node {node}", ha="center", va="bottom", color=INK)
        ends = [((0, j), (1, j), 0.0) for j in range(per_node)]
        if phase != 1:
            ring = [(j, (j + 1) % per_node) for j in range(per_node)]
            ends = [
                ((node, a), (node, b), 0.0 if a < b else 0.5)
                for node in range(nodes)
                for a, b in ring
            ]
        kind = "<|-|>" if phase == 1 else "-|>"
        for start, end, bend in ends:
            color = device_color(start[1]) if phase == 1 else INK
            look = {"color": color, "connectionstyle": f"arc3,rad={bend}"}
            arrow(ax, start, end, kind, head=12, gap=11, lw=1.8, **look)
        for rank in range(nodes * per_node):
            x, y = divmod(rank, per_node)
            dot(ax, x, y, rank, device_color(y), 19)
    return figure
