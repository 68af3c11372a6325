"""Picture of ring attention under a causal mask: who needs what of each block, when.

Chapter: *long_sequences*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .style import INK, device_colour, styled, subplots, without_frame

_EMPTY = "#EEEEEE"


@styled
def needed_scores(orders: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Draw, for every rank and turn of a ring, which scores of its block are needed.

    `orders` gives the positions of every rank's tokens, one list for each way to deal
    them out. A block has a row for each query of the rank and a column for each key of
    the rank whose block has come; a score is coloured if its key is not later than its
    query. Over each column stands the largest share that a rank needs, in per cent.
    """
    figure, axes = subplots(1, len(orders), 1.36 * len(orders), 2.1)
    for ax, (order, at) in zip(axes, orders.items(), strict=True):
        n = len(at)
        needed = [
            [at[r - turn] <= at[r][:, None] for turn in range(n)] for r in range(n)
        ]
        for r, row in enumerate(needed):
            shades = ListedColormap([_EMPTY, device_colour(r)])
            for turn, mask in enumerate(row):
                where = (turn + 0.04, turn + 0.96, r + 0.96, r + 0.04)
                ax.imshow(mask, shades, vmin=0, vmax=1, extent=where)
        slowest = [max(row[turn].mean() for row in needed) for turn in range(n)]
        for turn, share in enumerate(slowest):
            label = f"{100 * share:.0f}"
            ax.text(turn + 0.5, -0.12, label, ha="center", size=9, color=INK)
        ax.set(xlim=(0, n), ylim=(n, -0.6))
        ax.set_title(order, size=10)
        ax.set_xticks(np.arange(n) + 0.5, range(1, n + 1), size=9)
        ax.set_xlabel("turn", size=9)
        ax.set_yticks(np.arange(n) + 0.5, range(n), size=9)
        without_frame(ax)
    axes[0].set_ylabel("rank", size=9)
    return figure
