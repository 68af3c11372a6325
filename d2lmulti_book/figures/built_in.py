"""Pictures of what the frameworks' own tools do: DDP's hooks; losses beside a floor.

Chapters: *built_in*, *tensorflow*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

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


@styled
def ddp_hooks() -> Figure:
    """Draw one step of DDP: buckets fill during backward and are all-reduced."""
    figure, (ax,) = subplots(1, 1, 8, 3.9)

    def box(x: float, y: float, width: float, text: str, colour: str) -> None:
        ink = "white" if colour == device_colour(0) else INK
        bar = Rectangle((x, y - 0.3), width, 0.6, fc=colour, ec="white", lw=1.2)
        ax.add_patch(bar)
        ax.text(x + width / 2, y, text, ha="center", va="center", color=ink, size=10)

    for y, slow in ((4, 1.0), (3, 1.08)):  # rank 1 is a little slower
        box(0, y, 2.4 * slow, "forward", "#DDDDDD")
        for i, layer in enumerate((4, 3, 2, 1)):
            colour = device_colour(i // 2)
            box((2.4 + 1.5 * i) * slow, y, 1.5 * slow, f"layer {layer}", colour)
        box(11.95, y, 1.3, "step", "#DDDDDD")
    for i, layer in enumerate((4, 3, 2, 1)):
        ready = (3.9 + 1.5 * i) * 1.08
        left = (4.4, 5.3, 8.0, 8.9)[i]
        box(left, 1.9, 0.9, f"g{layer}", device_colour(i // 2))
        arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1}
        ax.annotate("", (left + 0.45, 2.24), (ready, 2.68), arrowprops=arrow)
    for bucket, (begin, end) in enumerate(((5.83, 8.6), (9.07, 11.84))):
        left = (4.4, 8.0)[bucket]
        ax.add_patch(Rectangle((left - 0.1, 1.52), 2, 0.76, fill=False, ec=INK, lw=1.3))
        box(begin, 0.8, end - begin, f"all-reduce {bucket + 1}", device_colour(bucket))
        ax.text(left - 0.25, 1.9, f"{bucket + 1}", ha="right", va="center", size=10.5)
    ax.plot((9.07, 9.07), (0.05, 1.4), color=INK, ls=":", lw=1.2)
    ax.text(8.9, 0.2, "hidden behind the backward pass", ha="right", size=10)
    ax.text(9.24, 0.2, "exposed", size=10)
    for y in (4, 3):
        ax.text(10.5, y, "idle", ha="center", va="center", size=10, style="italic")
    ax.text(5.75, 4.5, "backward pass", ha="center", size=10, color=INK)
    for at, name in ((4, "rank 0"), (3, "rank 1"), (1.9, "buckets"), (0.8, "network")):
        ax.text(-0.2, at, name, ha="right", va="center", size=10.5, color=INK)
    ax.set(xlim=(-1.9, 13.35), ylim=(0, 4.75))
    ax.axis("off")
    return figure
