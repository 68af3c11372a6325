"""Figures of parameter servers, drawn from the events of a run.

Workers have the colors of devices in `style.py`. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from d2lmulti.plans.placement import PLACEMENTS, shard_to_servers

from .style import INK, arrow, box, canvas, device_color, styled, subplots

if TYPE_CHECKING:
    from d2lmulti.training.on_servers import ServerHistory

Curve = Sequence[tuple[float, float]]  # (seconds, loss), one run


@styled
def push_and_pull(workers: int = 3, servers: int = 2) -> Figure:
    """Draw workers and servers: gradients pushed and weights pulled, by key range."""
    width, gap, top = 1.3, 0.5, 3.0  # of a key range in a worker, and between workers
    step = servers * width + gap
    total = workers * step - gap
    figure, ax = canvas(8, 4.1, (-0.1, total + 0.1), (-0.75, top + 1.45))
    ranges = [chr(ord("A") + i) for i in range(servers)]
    centers = [total * (i + 0.5) / servers for i in range(servers)]
    for worker in range(workers):
        color = device_color(worker)
        left = worker * step
        middle, label = left + servers * width / 2, f"worker {worker}, its own examples"
        ax.text(middle, top + 1.05, label, ha="center", size=9.5)
        for server, (name, center) in enumerate(zip(ranges, centers, strict=True)):
            x = left + server * width
            box(ax, (x, top), (width, 0.85), f"range {name}", color, size=9.5)
            at_worker = x + width / 2
            at_server = center + 0.62 * (worker - (workers - 1) / 2)
            push = (at_worker - 0.11, top), (at_server - 0.11, 1.0)
            pull = (at_server + 0.11, 1.0), (at_worker + 0.11, top)
            arrow(ax, *push, color=color, lw=2.2)
            arrow(ax, *pull, lw=1.0, ls="--")
    for server, (name, center) in enumerate(zip(ranges, centers, strict=True)):
        words = f"server {server}: weights of key range {name}"
        box(ax, (center - 1.85, 0.15), (3.7, 0.85), words, size=9.5)
    for x, words, look in (
        (0.2, "push: gradients", {"color": device_color(0), "lw": 2.2}),
        (total / 2 + 0.3, "pull: weights", {"color": INK, "lw": 1.0, "ls": "--"}),
    ):
        ax.plot([x, x + 0.8], [-0.45, -0.45], **look)
        ax.text(x + 0.95, -0.45, words, va="center", size=9.5)
    return figure


@styled
def placements(sizes: Sequence[int], servers: int) -> Figure:
    """Draw, for each placement, how the parameters fill the servers."""
    height = 0.5 + len(PLACEMENTS) * (0.35 + 0.22 * servers)
    figure, axes = subplots(len(PLACEMENTS), 1, 4.1, height, sharex=True)
    for ax, name in zip(axes, PLACEMENTS, strict=True):
        held = [0] * servers
        for part in shard_to_servers(sizes, servers, name):
            length = part.last - part.first
            color = device_color(part.parameter)
            ax.barh(part.server, length, left=held[part.server], color=color, ec="w")
            held[part.server] += length
        ax.axvline(sum(sizes) / servers, color=INK, lw=1, ls=":")
        ax.set_title(name, loc="left")
        ax.set_yticks(range(servers), [f"server {i}" for i in range(servers)])
        ax.invert_yaxis()
    axes[-1].set_xlabel("elements per server")
    axes[-1].xaxis.set_major_locator(MaxNLocator(3))
    axes[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return figure


@styled
def timeline(histories: Mapping[str, ServerHistory], seconds: float) -> Figure:
    """Draw a row per worker, with a bar from each pull to its push."""
    rows = sum(history.workers + 1.2 for history in histories.values())
    figure, axes = subplots(len(histories), 1, 6.8, 0.4 + 0.26 * rows, sharex=True)
    for ax, (label, history) in zip(axes, histories.items(), strict=True):
        pulled: dict[int, float] = {}
        spans: dict[int, list[tuple[float, float]]] = {}
        for event in history.events:
            if event.kind == "pull":
                pulled[event.worker] = event.seconds
                continue
            start = pulled.pop(event.worker)
            spans.setdefault(event.worker, []).append((start, event.seconds - start))
        for worker, bars in spans.items():  # one artist for many bars: ten times faster
            row = (worker - 0.375, 0.75)
            ax.broken_barh(bars, row, color=device_color(worker), ec="w")
        updates = {push.seconds for push in history.pushes}
        axis = ax.get_xaxis_transform()
        ax.vlines([*updates], 0, 1, color=INK, lw=0.6, alpha=0.5, transform=axis)
        workers = range(history.workers)
        ax.set_yticks(workers, [f"worker {i}" for i in workers])
        ax.invert_yaxis()
        ax.set_xlim(0, seconds)
        ax.set_title(label, loc="left")
    axes[-1].set_xlabel("modeled seconds")
    return figure


@styled
def loss_over_time(
    panels: Mapping[str, Mapping[str, Sequence[Curve]]], seconds: float, goal: float
) -> Figure:
    """Draw a panel per title: a median line and a band over the runs of each label.

    A dot marks where a median falls below the goal.
    """
    figure, axes = subplots(1, len(panels), 6.8, 3.4, sharey=True)
    styles = ("-", "--", "-.", ":")
    grid = np.linspace(0, seconds, 801)
    for ax, (title, runs) in zip(axes, panels.items(), strict=True):
        for i, (label, curves) in enumerate(runs.items()):
            losses = np.array([_on_grid(curve, grid) for curve in curves])
            shown = np.isfinite(losses).all(0)  # where every run has a loss
            x, losses = grid[shown], losses[:, shown]
            median, color = np.median(losses, axis=0), device_color(i)
            band = losses.min(0), losses.max(0)
            ax.fill_between(x, *band, color=color, alpha=0.18, lw=0)
            name = label if ax is axes[0] else None
            ax.plot(x, median, color=color, ls=styles[i % 4], lw=2, label=name)
            below = np.flatnonzero(median < goal)
            if below.size:
                ax.plot(x[below[0]], goal, "o", color=color, ms=8, mec="w", zorder=4)
        ax.axhline(goal, color=INK, lw=0.8, ls=":")
        ax.set_xlim(0, seconds)
        ax.set_title(title)
        ax.set_xlabel("modeled seconds")
    axes[0].set_ylabel("loss")
    axes[0].set_yscale("log")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _on_grid(curve: Curve, grid: np.ndarray) -> np.ndarray:
    """Return the last loss at each time; NaN before the first and after the last."""
    times, losses = np.array(curve).T
    last = np.searchsorted(times, grid, side="right") - 1
    return np.where((last >= 0) & (grid <= times[-1]), losses[last], np.nan)
