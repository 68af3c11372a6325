"""Pictures of parameter servers, drawn from the events of a run.

Workers keep the colours that devices have in `plot.py`. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..plans.servers import PLACEMENTS, shard_to_servers
from .style import INK, device_colour

if TYPE_CHECKING:
    from ..training.on_servers import ServerHistory

_STYLES = ("-", "--", "-.", ":")


def placements(sizes: Sequence[int], servers: int) -> Figure:
    """Draw, for each placement, how the parameters fill the servers."""
    figure, axes = plt.subplots(
        1, len(PLACEMENTS), figsize=(9, 0.9 + 0.4 * servers), sharex=True, sharey=True,
        layout="constrained",
    )  # fmt: skip
    for ax, name in zip(axes, PLACEMENTS, strict=True):
        held = [0] * servers
        for part in shard_to_servers(sizes, servers, name):
            length = part.last - part.first
            colour = device_colour(part.parameter)
            ax.barh(part.server, length, left=held[part.server], color=colour, ec="w")
            held[part.server] += length
        ax.axvline(sum(sizes) / servers, color=INK, lw=1, ls=":")
        ax.set_title(name, size=11, color=INK)
        ax.set_xlabel("numbers on a server")
        ax.xaxis.set_major_locator(plt.MaxNLocator(3))  # the last meets the next's 0
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(servers), [f"server {i}" for i in range(servers)])
    axes[0].invert_yaxis()
    return figure


def timeline(histories: Mapping[str, ServerHistory], seconds: float) -> Figure:
    """Draw who works when: a bar from a worker's pull to its push, a row a worker."""
    rows = sum(history.workers + 1.2 for history in histories.values())
    figure, axes = plt.subplots(
        len(histories), 1, figsize=(9, 0.4 + 0.29 * rows), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for ax, (label, history) in zip(axes[:, 0], histories.items(), strict=True):
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
        _worker_rows(ax, history.workers)
        ax.set_xlim(0, seconds)
        ax.set_title(label, size=11, color=INK, loc="left")
    axes[-1, 0].set_xlabel("modelled seconds")
    return figure


def _worker_rows(ax: Axes, workers: int) -> None:
    ax.set_yticks(range(workers), [f"worker {i}" for i in range(workers)])
    ax.invert_yaxis()
    ax.spines[["top", "right"]].set_visible(False)


def staleness(histories: Mapping[str, ServerHistory]) -> Figure:
    """Draw the measured staleness of every gradient, by worker, over time."""
    figure, axes = plt.subplots(
        1, len(histories), figsize=(9, 3), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    workers = max(history.workers for history in histories.values())
    for ax, (label, history) in zip(axes[0], histories.items(), strict=True):
        for worker in range(history.workers):
            points = [
                (p.seconds, p.staleness) for p in history.pushes if p.worker == worker
            ]
            ax.scatter(*zip(*points, strict=True), s=14, color=device_colour(worker))
        mean = sum(history.staleness) / len(history.staleness)
        ax.axhline(mean, color=INK, lw=1, ls=":")
        ax.set_title(label, size=11, color=INK)
        ax.set_xlabel("modelled seconds")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("staleness (updates)")
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    handles = [
        Patch(color=device_colour(i), label=f"worker {i}") for i in range(workers)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=8, frameon=False)
    return figure


def loss_by_second(panels: Mapping[str, Mapping[str, ServerHistory]]) -> Figure:
    """Draw the loss over modelled time: one panel a situation, one line a run."""
    figure, axes = plt.subplots(
        1, len(panels), figsize=(9, 3), sharey=True, squeeze=False, layout="constrained"
    )
    for ax, (title, histories) in zip(axes[0], panels.items(), strict=True):
        for i, (label, history) in enumerate(histories.items()):
            seconds, losses = zip(*history.curve, strict=True)
            line = {"color": device_colour(i), "ls": _STYLES[i % 4], "label": label}
            ax.plot(seconds, losses, **line)
        ax.set_title(title, size=11, color=INK)
        ax.set(xlabel="modelled seconds", yscale="log")
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("training loss")
    if axes[0, -1].lines:  # Matplotlib warns of a legend without lines
        axes[0, -1].legend(frameon=False)
    return figure
