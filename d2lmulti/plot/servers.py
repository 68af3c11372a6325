"""Pictures of parameter servers, drawn from the events of a run.

Workers keep the colours that devices have in `plot.py`. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..plans.servers import PLACEMENTS, shard_to_servers
from .style import INK, device_colour, styled, subplots

if TYPE_CHECKING:
    from ..training.on_servers import ServerHistory


@styled
def placements(sizes: Sequence[int], servers: int) -> Figure:
    """Draw, for each placement, how the parameters fill the servers."""
    height = 0.9 + 0.4 * servers
    figure, axes = subplots(1, len(PLACEMENTS), 9, height, sharex=True, sharey=True)
    for ax, name in zip(axes, PLACEMENTS, strict=True):
        held = [0] * servers
        for part in shard_to_servers(sizes, servers, name):
            length = part.last - part.first
            colour = device_colour(part.parameter)
            ax.barh(part.server, length, left=held[part.server], color=colour, ec="w")
            held[part.server] += length
        ax.axvline(sum(sizes) / servers, color=INK, lw=1, ls=":")
        ax.set_title(name)
        ax.set_xlabel("numbers on a server")
        ax.xaxis.set_major_locator(plt.MaxNLocator(3))  # the last meets the next's 0
    axes[0].set_yticks(range(servers), [f"server {i}" for i in range(servers)])
    axes[0].invert_yaxis()
    return figure


@styled
def timeline(histories: Mapping[str, ServerHistory], seconds: float) -> Figure:
    """Draw who works when: a bar from a worker's pull to its push, a row a worker."""
    rows = sum(history.workers + 1.2 for history in histories.values())
    figure, axes = subplots(len(histories), 1, 9, 0.4 + 0.29 * rows, sharex=True)
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
            ax.broken_barh(bars, row, color=device_colour(worker), ec="w")
        updates = {push.seconds for push in history.pushes}
        axis = ax.get_xaxis_transform()
        ax.vlines([*updates], 0, 1, color=INK, lw=0.6, alpha=0.5, transform=axis)
        workers = range(history.workers)
        ax.set_yticks(workers, [f"worker {i}" for i in workers])
        ax.invert_yaxis()
        ax.set_xlim(0, seconds)
        ax.set_title(label, loc="left")
    axes[-1].set_xlabel("modelled seconds")
    return figure


@styled
def staleness(histories: Mapping[str, ServerHistory]) -> Figure:
    """Draw the measured staleness of every gradient, by worker, over time."""
    figure, axes = subplots(1, len(histories), 9, 3, sharey=True)
    workers = max(history.workers for history in histories.values())
    for ax, (label, history) in zip(axes, histories.items(), strict=True):
        for worker in range(history.workers):
            points = [
                (p.seconds, p.staleness) for p in history.pushes if p.worker == worker
            ]
            ax.scatter(*zip(*points, strict=True), s=14, color=device_colour(worker))
        mean = sum(history.staleness) / len(history.staleness)
        ax.axhline(mean, color=INK, lw=1, ls=":")
        ax.set_title(label)
        ax.set_xlabel("modelled seconds")
    axes[0].set_ylabel("staleness (updates)")
    axes[0].yaxis.get_major_locator().set_params(integer=True)
    handles = [
        Patch(color=device_colour(i), label=f"worker {i}") for i in range(workers)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=8)
    return figure
