"""A picture of what the frameworks' own tools do: losses beside a floor.

Chapter: *tensorflow*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .style import INK, device_colour, styled, subplots


@styled
def losses_with_floor(curves: Mapping[str, Sequence[float]], floor: float) -> Figure:
    """Draw one curve of losses by epoch for each name, and a dotted line at `floor`."""
    figure, (ax,) = subplots(1, 1, 6.4, 3.4)
    for i, (name, losses) in enumerate(curves.items()):
        epochs = range(1, len(losses) + 1)
        ax.plot(epochs, losses, "-o", ms=4, color=device_colour(i), label=name)
    ax.axhline(floor, color=INK, ls=":", lw=1)
    ax.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    ax.legend()
    return figure
