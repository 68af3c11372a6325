"""Figures of ZeRO: the state that each GPU stores, and the update in a step.

Chapter: *sharding*.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import INK, arrow, canvas, device_color, styled, subplots, without_frame

_KINDS = (  # the kind, its bytes per parameter, and the first stage that shards it
    ("weights", 2, 3),
    ("gradients", 2, 2),
    ("optimizer state", 12, 1),
)


@styled
def memory_bars(billions: float = 7, devices: int = 8, limit: float = 80) -> Figure:
    """Draw one GPU's gigabytes of model state for data parallelism and ZeRO 1 to 3.

    A pale bar with a dashed edge marks the state that other GPUs store instead. The
    vertical line marks the GPU's memory, `limit`, in gigabytes.
    """
    figure, (ax,) = subplots(1, 1, 7, 3.1)
    names = ("data parallelism", "ZeRO 1", "ZeRO 2", "ZeRO 3 (FSDP)")
    for stage in range(len(names)):
        left, total = 0.0, 0.0
        for i, (kind, size, first) in enumerate(_KINDS):
            full = billions * size
            stored = full / devices if stage >= first else full
            options = {"height": 0.66, "left": left}
            if stored < full:
                ax.barh(
                    stage, full, fc="#F4F4F4", ec="#999999", ls="--", lw=0.8, **options
                )
            label = kind if stage == 0 else None
            ax.barh(stage, stored, fc=device_color(i), label=label, **options)
            left, total = left + full, total + stored
        words = f"{total:g} GB"
        ax.text(left + 1.5, stage, words, va="center", size=10, color=INK)
    ax.plot([limit] * 2, [-0.5, 0.5], color=INK, lw=1.8, ls=(0, (2, 1)))
    ax.text(limit, -0.62, f"GPU memory: {limit:g} GB", ha="center", size=9, color=INK)
    ax.set(xlim=(0, 1.17 * left), ylim=(len(names) - 0.5, -0.9))
    ax.set_yticks(range(len(names)), names, size=10)
    ax.set_xlabel(f"GB on each of {devices} GPUs, {billions:g} billion parameters")
    without_frame(ax)
    figure.legend(loc="outside lower center", ncols=3, fontsize=10)
    return figure


@styled
def zero_step(ranks: int = 4) -> Figure:
    """Draw how ZeRO 1 updates: reduce-scatter, update of one shard, all-gather.

    Each row is a rank and each bar one flat vector, cut into a shard per rank. A pale
    shard is a rank's own gradient, not yet summed.
    """
    width, step = 2.0, 3.15
    xlim = (-1.1, 3 * step + width + 0.1)
    figure, ax = canvas(8, 3.1, xlim, (ranks - 0.5, -1.1))
    titles = ("own gradients", "summed gradients", "updated shards", "weights")
    between = ("reduce-\nscatter", "update", "all-\ngather")
    for column, title in enumerate(titles):
        left = column * step
        ax.text(left + width / 2, -0.75, title, ha="center", size=10.5, color=INK)
        for rank in range(ranks):
            for shard in range(ranks):
                own = column in (0, 3) or shard == rank
                color = device_color(shard) if own else "white"
                corner = (left + shard * width / ranks, rank - 0.3)
                look: dict[str, Any] = {
                    "alpha": 0.3 if column == 0 else 1,
                    "ec": "#999999",
                }
                look |= {"fc": color, "ls": "-" if own else (0, (2, 2))}
                ax.add_patch(Rectangle(corner, width / ranks, 0.6, **look))
        if column < len(between):
            middle = ranks / 2 - 0.5
            arrow(ax, (left + width + 0.1, middle), (left + step - 0.1, middle))
            x = left + (width + step) / 2
            ax.text(x, middle - 0.15, between[column], ha="center", size=10, color=INK)
    for rank in range(ranks):
        ax.text(-0.15, rank, f"rank {rank}", ha="right", va="center", size=10)
    return figure
