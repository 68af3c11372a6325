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
    canvas,
    device_color,
    device_patches,
    styled,
    subplots,
)


@styled
def column_row_pair(devices: int = 2, by_tokens: bool = False) -> Figure:
    """Draw a column cut followed by a row cut, with f and g, forward and backward.

    Every matrix has its shape, and each device's row shows what that device holds of
    it. With `by_tokens`, each device holds only its own tokens before f and after g.
    """
    tokens = "rows" if by_tokens else "all"
    columns: tuple[tuple[float, str, float, float, str], ...] = (
        (0.0, "$X$", 0.8, 0.9, tokens),  # left, name, width, height, part
        (1.7, "$W_1$", 1.2, 0.8, "columns"),
        (3.4, "ReLU$(XW_1)$", 1.2, 0.9, "columns"),
        (5.1, "$W_2$", 0.8, 1.2, "rows"),
        (6.4, "partial $Y$", 0.8, 0.9, "sum"),
        (8.1, "$Y$", 0.8, 0.9, tokens),
    )
    row, bars = 1.4, (("f", 1.25), ("g", 7.65))
    top = (devices - 1) * row + 0.8
    figure, ax = canvas(8, 1.5 + 1.15 * devices, (-1.0, 9.0), (-1.75, top + 0.45))
    for rank in range(devices):
        y = (devices - 1 - rank) * row
        for x, _, width, height, part in columns:
            _held(ax, (x, y - height / 2), (width, height), part, rank, devices)
        for x, end in ((0.8, 1.7), (2.9, 3.4), (4.6, 5.1), (5.9, 6.4), (7.2, 8.1)):
            arrow(ax, (x + 0.06, y), (end - 0.06, y))
        ax.text(-0.15, y, f"device {rank}", ha="right", va="center", size=10)
    for x, name, width, _, _ in columns:
        ax.text(x + width / 2, top, name, ha="center", va="center", size=10)
    for name, x in bars:
        ax.plot([x, x], [-0.6, top - 0.2], color=INK, lw=5, alpha=0.85, zorder=4)
        ax.text(x, top, f"${name}$", ha="center", va="center", size=14)
    forward = (
        ("all-gather", "reduce-scatter") if by_tokens else ("identity", "all-reduce")
    )
    for y, words, calls in (
        (-1.0, "forward →", forward),
        (-1.45, "← backward", forward[::-1]),
    ):
        ax.text(4.45, y, words, ha="center", va="center", size=10, color=INK)
        for (_, x), call in zip(bars, calls, strict=True):
            ax.text(x, y, call, ha="center", va="center", size=10)
    return figure


def _held(
    ax: Axes,
    corner: tuple[float, float],
    sides: tuple[float, float],
    part: str,
    rank: int,
    ranks: int,
) -> None:
    """Draw a matrix, and over it the part that one device holds."""
    (x, y), (width, height) = corner, sides
    color = device_color(rank)
    if part == "all":
        ax.add_patch(Rectangle(corner, width, height, fc=PALE, ec="#999999", lw=1))
        return
    if part == "sum":
        look = {"fc": color, "ec": color, "alpha": 0.4}
        ax.add_patch(Rectangle(corner, width, height, lw=1, **look))
        ax.text(x + width / 2, y + height / 2, "sum\n" + "of 2", size=1, alpha=0)
        return
    ax.add_patch(Rectangle(corner, width, height, fc="white", ec="#777777", ls=":"))
    if part == "columns":
        width = width / ranks
        x += rank * width
    else:
        height = height / ranks
        y += (ranks - 1 - rank) * height  # row 0 on top
    ax.add_patch(Rectangle((x, y), width, height, fc=color, ec=color, lw=1))


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
