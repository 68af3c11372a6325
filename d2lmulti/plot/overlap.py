"""A picture of communication behind the backward pass. Chapter: *allreduce*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from .style import INK, device_colour

Span = tuple[float, float]  # begin and end


def overlap_timeline(
    backward: Sequence[Span], buckets: Mapping[str, Sequence[Span]], unit: str = "ms"
) -> Figure:
    """Draw when gradients are computed and, for each way to bucket, when they travel.

    The spans come from `cluster.overlap.spans` or from a measured run, in `unit`. The
    dotted line is the end of the backward pass: what lies right of it is waited for.
    """
    rows = {"backward pass": list(backward), **{k: list(v) for k, v in buckets.items()}}
    height = 0.8 + 0.42 * len(rows)
    figure, ax = plt.subplots(figsize=(8, height), layout="constrained")
    for y, spans in enumerate(rows.values()):
        for i, (begin, end) in enumerate(spans):
            colour = "#DDDDDD" if y == 0 else device_colour(i)
            ax.barh(y, end - begin, left=begin, height=0.7, color=colour, ec="white")
    ax.axvline(max(end for _, end in backward), color=INK, lw=1, ls=":")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set_xlim(0)
    ax.set_xlabel(unit)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return figure
