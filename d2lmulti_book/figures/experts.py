"""Figures of experts: dispatch and combine, and the slots of tokens.

Chapter: *experts*.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from d2lmulti.models.experts import expert_capacity

from .style import INK, arrow, box, canvas, device_color, styled, without_frame

_DROPPED = "#DDDDDD"


@styled
def slots(choice: Sequence[int], experts: int, parts: int, factor: float) -> Figure:
    """Draw each token in a slot of the expert that it chose, or dropped beyond them.

    `choice` gives the expert of every token. Above, the tokens are one batch; below,
    the same tokens are cut into `parts`, each with slots of its own. A token has the
    color of its part in both. Raises what `expert_capacity` raises.
    """
    cut = np.array_split(np.asarray(choice), parts)
    figure = plt.figure(figsize=(4.1, 4.2))
    top, *below = figure.subplot_mosaic(
        [["whole"] * parts, list(range(parts))]
    ).values()
    all_tokens = [
        (part, expert) for part, tokens in enumerate(cut) for expert in tokens
    ]
    _draw(top, all_tokens, experts, factor, f"one batch of {len(all_tokens)}")
    widest = max(np.bincount(tokens, minlength=experts).max() for tokens in cut)
    for part, (ax, tokens) in enumerate(zip(below, cut, strict=True)):
        rank_tokens = [(part, expert) for expert in tokens]
        _draw(ax, rank_tokens, experts, factor, f"rank {part}")
        ax.set_xlim(-0.3, max(widest, *ax.get_xlim()))
        if part:
            ax.set_yticks([])
    for ax in (top, below[0]):
        ax.set_ylabel("expert", size=9)
    figure.legend(
        handles=[
            *(Patch(color=device_color(i), label=f"rank {i}'s") for i in range(parts)),
            Patch(fc="white", ec=INK, label="empty slot"),
            Patch(fc=_DROPPED, label="dropped"),
        ],
        loc="outside lower center", ncols=3, fontsize=9,
    )  # fmt: skip
    return figure


@styled
def dispatch_combine() -> Figure:
    """Draw the two all-to-alls of a layer with two ranks and one expert on each.

    Tokens have the color of the rank that they come from. Each row is a rank; the
    tokens of both ranks that chose an expert are sent to its rank and return.
    """
    figure, ax = canvas(4.3, 3.4, (-1.75, 7.5), (-4.3, 6.1))
    chosen = ((0, 1, 1), (1, 0, 1))  # for each rank, the expert of its tokens
    inside = [  # for each expert, the tokens that it computes: (rank, index)
        [(r, i) for r, part in enumerate(chosen) for i, e in enumerate(part) if e == at]
        for at in range(2)
    ]
    tokens: list[tuple[float, float, int, int]] = []
    for rank, part in enumerate(chosen):
        top = 4.0 - 4.2 * rank  # of three or four places for tokens, downward
        ax.text(-0.35, top - 1, f"rank {rank}", ha="right", va="center", size=9)
        box(ax, (2.15, top - 3.2), (2.6, 3.4), color="#EEEEEE", edge=INK)
        ax.text(3.95, top - 1.5, f"expert\n{rank}", ha="center", va="center", size=9)
        for place, (source, i) in enumerate(inside[rank]):
            y, home = top - 0.3 - 0.8 * place, 4.0 - 4.2 * source - 0.3 - 0.9 * i
            tokens.append((2.75, y, source, i))
            for start, end in (((0.6, home), (2.35, y)), ((4.75, y), (6.4, home))):
                arrow(ax, start, end, color=device_color(source))
        for i in range(len(part)):
            tokens += [(x, top - 0.3 - 0.9 * i, rank, i) for x in (0.2, 6.8)]
    for x, y, rank, i in tokens:
        words, color = "abc"[i], device_color(rank)
        box(ax, (x - 0.35, y - 0.33), (0.7, 0.66), words, color, size=9)
    for x, words in (
        (0.1, "router\nchooses"), (1.75, "dispatch:\nall-to-all"),
        (3.45, "experts\ncompute"), (5.1, "combine:\nall-to-all"),
        (6.8, "× gate,\n+ token"),
    ):  # fmt: skip
        ax.text(x, 5.2, words, ha="center", va="center", size=9, color=INK)
    for x, name in ((0.7, "sent"), (2.65, "arrived"), (4.6, "outs"), (6.2, "home")):
        ax.text(x, -4.0, name, ha="center", va="center", size=9, family="monospace")
    return figure


def _draw(
    ax: Axes, tokens: Sequence[tuple[int, int]], experts: int, factor: float, title: str
) -> None:
    """Draw a row per expert: slots from the left, then the dropped tokens."""
    capacity = expert_capacity(len(tokens), experts, factor)
    used = [0] * experts
    for part, expert in tokens:
        place, color = (used[expert], expert), device_color(part)
        used[expert] += 1
        if used[expert] <= capacity:
            ax.add_patch(Rectangle(place, 0.8, 0.8, fc=color))
        else:
            ax.add_patch(Rectangle(place, 0.8, 0.8, fc=_DROPPED))
            ax.plot(place[0] + 0.4, expert + 0.4, ".", ms=4, color=color)
    for expert, count in enumerate(used):
        for slot in range(count, capacity):
            ax.add_patch(
                Rectangle((slot, expert), 0.8, 0.8, fc="white", ec=INK, lw=0.5)
            )
    ax.plot([capacity - 0.1] * 2, [-0.3, experts + 0.1], color=INK, lw=1)
    ax.set(xlim=(-0.3, max(*used, capacity) + 0.1), ylim=(experts, -0.4))
    ax.set_title(title, size=10)
    ax.set_xticks([])
    ax.set_yticks(np.arange(experts) + 0.4, range(experts), size=9)
    without_frame(ax)
