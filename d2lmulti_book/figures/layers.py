"""Figures of tensor parallelism: a split pair of layers, and the shards per device.

Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from d2lmulti.backends.protocol import Tensor
from d2lmulti.models.tensor_parallel.layers import ShardSpec, SplitModel

from .style import (
    INK,
    PALE,
    arrow,
    box,
    canvas,
    device_color,
    device_patches,
    styled,
    subplots,
)


@styled
def column_row_pair(devices: int = 2, by_tokens: bool = False) -> Figure:
    """Draw a column cut followed by a row cut, with f and g, forward and backward.

    With `by_tokens`, each device holds only its own tokens before f and after g.
    """
    forward = (
        ("all-gather", "reduce-scatter") if by_tokens else ("identity", "all-reduce")
    )
    height = 1.3 + 1.15 * devices
    figure, ax = canvas(8, height, (-1.25, 10.4), (-1.3, devices))
    for rank in range(devices):
        y, color = float(devices - 1 - rank), device_color(rank)
        edge = color if by_tokens else PALE
        tokens = f", tokens {rank + 1}" if by_tokens else ""
        for x, words, of in (
            (0, "$X$" + tokens, edge),
            (2.1, f"$W_1$, columns {rank + 1}", color),
            (4.2, "hidden units\nof its own", color),
            (6.3, f"$W_2$, rows {rank + 1}", color),
            (8.8, "$Y$" + tokens, edge),
        ):
            box(ax, (x, y - 0.32), (1.5, 0.64), words, of, size=9)
        for start in (1.5, 3.6, 5.7):
            arrow(ax, (start, y), (start + 0.6, y))
        arrow(ax, (7.8, y), (8.8, y))
        ax.text(-0.15, y, f"device {rank}", ha="right", va="center", size=9)
    for x, name in ((1.8, "f"), (8.3, "g")):
        ax.plot([x, x], [-0.42, devices - 0.58], color=INK, lw=5, alpha=0.85, zorder=4)
        ax.text(x, devices - 0.5, f"${name}$", ha="center", va="bottom", size=13)
    rows = (("forward →", *forward), ("← backward", *reversed(forward)))
    for row, (words, at_f, at_g) in enumerate(rows):
        y = -0.75 - 0.34 * row
        ax.text(1.8, y, at_f, ha="center", va="center", size=9)
        ax.text(8.3, y, at_g, ha="center", va="center", size=9)
        ax.text(5.05, y, words, ha="center", va="center", size=9, color=INK)
    return figure


@styled
def who_holds(model: SplitModel, device_shards: Sequence[Sequence[Tensor]]) -> Figure:
    """Draw every weight of a split model, each part in the color of its device.

    Matrices have their inputs as rows; of a convolution the rows are the output
    channels and the columns the input channels. Gray parts are on every device.
    Vectors are left out. Sides are drawn as square roots of the sizes, so that 192 next
    to 36 stays readable.
    """
    ranks = len(device_shards)
    drawn = [
        (layer, spec, _full_shape(spec, shard.shape, ranks))
        for (layer, spec), shard in zip(model.specs, device_shards[0], strict=True)
        if len(shard.shape) > 1
    ]
    sides = [(rows**0.5, columns**0.5) for _, _, (rows, columns, *_) in drawn]
    tallest = max(height for height, _ in sides)
    figure, (ax,) = subplots(1, 1, 8, 2.2)
    x = 0.0
    for (layer, spec, shape), (height, width) in zip(drawn, sides, strict=True):
        y = (tallest - height) / 2
        _weight(ax, spec, (x, y), (height, width), ranks)
        middle = x + width / 2
        ax.text(middle, y - 0.5, layer, ha="center", va="bottom", size=8, color=INK)
        size = " x ".join(map(str, shape))
        ax.text(middle, y + height + 0.5, size, ha="center", va="top", size=8)
        x += max(width, 7) + 2  # room for the name
    ax.set(xlim=(-1, x), ylim=(tallest + 2, -2), aspect="equal")  # row 0 on top
    ax.axis("off")
    handles = device_patches(ranks)
    if any(spec.dim is None for _, spec, _ in drawn):
        handles.append(Patch(color=PALE, label="every device"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _full_shape(spec: ShardSpec, shard: Sequence[int], ranks: int) -> list[int]:
    return [n * ranks if dim == spec.dim else n for dim, n in enumerate(shard)]


def _weight(
    ax: Axes,
    spec: ShardSpec,
    corner: tuple[float, float],
    sides: tuple[float, float],
    ranks: int,
) -> None:
    (x, y), (height, width) = corner, sides
    stripes = spec.blocks * ranks if spec.dim is not None else 1
    for i in range(stripes):
        color = PALE if spec.dim is None else device_color(i % ranks)
        w, h = (width / stripes, height) if spec.dim == 1 else (width, height / stripes)
        place = (x + i * w, y) if spec.dim == 1 else (x, y + i * h)
        ax.add_patch(Rectangle(place, w, h, fc=color, ec="white", lw=0.8))
