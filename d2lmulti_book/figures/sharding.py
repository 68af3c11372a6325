"""Figures of ZeRO: the state that each GPU stores, and what happens in a step.

Chapter: *sharding*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .style import (
    INK,
    PALE,
    arrow,
    box,
    canvas,
    device_color,
    styled,
    subplots,
    without_frame,
)

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
    figure, (ax,) = subplots(1, 1, 4.8, 3)
    names = ("data\nparallelism", "ZeRO 1", "ZeRO 2", "ZeRO 3\n(FSDP)")
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
        ax.text(left + 1.5, stage, words, va="center", size=9, color=INK)
    ax.plot([limit] * 2, [-0.5, 0.5], color=INK, lw=1.8, ls=(0, (2, 1)))
    ax.text(limit, -0.62, f"GPU memory: {limit:g} GB", ha="center", size=9, color=INK)
    ax.set(xlim=(0, 1.21 * left), ylim=(len(names) - 0.5, -0.9))
    ax.set_yticks(range(len(names)), names, size=9)
    label = f"GB on each of {devices} GPUs, {billions:g} billion parameters"
    ax.set_xlabel(label, size=9)
    ax.tick_params(labelsize=9)
    without_frame(ax)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


@styled
def zero_step(ranks: int = 4) -> Figure:
    """Draw how ZeRO 1 updates: reduce-scatter, update of one shard, all-gather.

    Each row is a rank and each bar one flat vector, cut into a shard per rank. A pale
    shard is a rank's own gradient, not yet summed.
    """
    width, step = 1.72, 3.4
    xlim = (-1.4, 3 * step + width + 0.1)
    figure, ax = canvas(4.8, 2.5, xlim, (ranks - 0.5, -1.4))
    titles = ("own\ngradients", "summed\ngradients", "updated\nshards", "weights")
    between = ("reduce-\nscatter", "update", "all-\ngather")
    for column, title in enumerate(titles):
        left = column * step
        ax.text(left + width / 2, -0.6, title, ha="center", size=9, color=INK)
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
            ax.text(x, middle - 0.15, between[column], ha="center", size=9, color=INK)
    for rank in range(ranks):
        ax.text(-0.15, rank, f"rank {rank}", ha="right", va="center", size=9)
    return figure


@styled
def block_cycle() -> Figure:
    """Draw one block in a step of ZeRO 3 on two ranks, from left to right in time.

    What concerns the neighboring blocks is pale. Below what a rank computes are the two
    halves of the block's weights and gradients that it stores, in their owners' colors.
    Pale gradients are a rank's own, not yet summed.
    """
    figure, axes = subplots(2, 1, 4.7, 5.2, height_ratios=[5, 7])
    weights, gradients = ("weights\nof block 2", 0, 4), ("gradients\nof block 2", 2, 6)
    forward, backward = axes
    forward.set_title("forward pass")
    _cycle(forward, ["gather 2", "gather 3"], ["forward 1", "forward 2", "forward 3"],
           [weights])  # fmt: skip
    backward.set_title("backward pass and update")
    _cycle(backward, ["gather 2", "gather 1", "scatter 2"],
           ["backward 3", "backward 2", "backward 1", "update"],
           [weights, gradients])  # fmt: skip
    return figure


def _cycle(
    ax: Axes,
    sent: Sequence[str],
    computed: Sequence[str],
    stored: Sequence[tuple[str, float, float]],
) -> None:
    """Draw what two ranks send, between what they store and what they compute.

    Sending and computing take two units each. `stored` gives the time from which, and
    up to which, both halves are in memory; the gradients' own half remains.
    """
    outer, end = len(stored) + 1, 2.0 * len(computed)
    rows = {0: ("both send", sent, INK)}
    for rank, side in ((0, -1), (1, 1)):
        rows[side * outer] = (f"rank {rank}\ncomputes", computed, device_color(rank))
        for row, (words, begin, freed) in enumerate(stored):
            y = side * (outer - 1 - row)
            ax.text(-0.2, y, words, ha="right", va="center", size=9, color=INK)
            for owner in (0, 1):
                corner, color = (begin, y - 0.36 + 0.36 * owner), device_color(owner)
                look = {"alpha": 0.3 if row else 1, "fc": color, "ec": "white"}
                ax.add_patch(Rectangle(corner, freed - begin, 0.36, **look))
                if owner == rank:
                    begins = freed if row else 0
                    box(ax, (begins, corner[1]), (end - begins, 0.36), "", color)
                else:
                    at = (freed + 0.1, corner[1] + 0.18)
                    ax.text(*at, "freed", va="center", size=9, color=INK)
    for y, (words, spans, color) in rows.items():
        ax.text(-0.2, y, words, ha="right", va="center", size=9, color=INK)
        for i, span in enumerate(spans):
            own = span.endswith("2") or span == "update"
            ink = "white" if own and color == INK else ""
            box(ax, (2 * i, y - 0.36), (2, 0.72), span, color if own else PALE,
                ink=ink, size=9)  # fmt: skip
    ax.set(xlim=(-2.3, 8.1), ylim=(outer + 0.5, -outer - 0.5))
    ax.axis("off")
