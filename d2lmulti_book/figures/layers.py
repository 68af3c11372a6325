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
    it. Arrows show the forward pass; those that cross are messages. With `by_tokens`,
    each device holds only its own tokens before f and after g.
    """
    tokens = "rows" if by_tokens else "all"
    columns: list[tuple[str, float, float, str]] = [  # name, width, height, part
        ("$X$", 0.8, 0.9, tokens),
        ("$W_1$", 1.2, 0.8, "columns"),
        ("ReLU$(XW_1)$", 1.2, 0.9, "columns"),
        ("$W_2$", 0.8, 1.2, "rows"),
        ("partial $Y$", 0.8, 0.9, "sum"),
        ("$Y$", 0.8, 0.9, tokens),
    ]
    if by_tokens:
        columns.insert(1, ("all of $X$", 0.8, 0.9, "all"))
    operators = {0: "f", len(columns) - 2: "g"}  # by the column before it
    calls = {"f": ("identity", "all-reduce"), "g": ("all-reduce", "identity")}
    if by_tokens:
        gather, scatter = "all-gather", "reduce-scatter"
        calls = {"f": (gather, scatter), "g": (scatter, gather)}
    row = 1.4
    top = (devices - 1) * row + 0.8
    heights = [(devices - 1 - rank) * row for rank in range(devices)]
    width = sum(column[1] for column in columns) + 0.5 * len(columns) + 1.7
    figure, ax = canvas(8, 1.5 + 1.15 * devices, (-1.5, width), (-1.75, top + 0.45))
    for rank, y in enumerate(heights):
        ax.text(-0.15, y, f"device {rank}", ha="right", va="center", size=10)
    x = 0.0
    for i, (name, width, height, part) in enumerate(columns):
        ax.text(x + width / 2, top, name, ha="center", va="center", size=10)
        for rank, y in enumerate(heights):
            _held(ax, (x, y - height / 2), (width, height), part, rank, devices)
        x += width
        operator = operators.get(i, "")
        gap = 1.3 if operator else 0.5
        if i + 1 < len(columns):
            everywhere = operator and calls[operator][0] != "identity"
            for source, start in enumerate(heights):
                for end in heights if everywhere else [start]:
                    color = device_color(source) if everywhere else INK
                    ends = (x + 0.06, start), (x + gap - 0.06, end)
                    arrow(ax, *ends, color=color, lw=1.5, zorder=3)
        if operator:
            middle = x + gap / 2
            corner, sides = (middle - 0.3, -0.62), (0.6, top + 0.42)
            ax.add_patch(Rectangle(corner, *sides, fc="#F4F4F4", ec="#777777", lw=1))
            ax.text(middle, top, f"${operator}$", ha="center", va="center", size=14)
            for y, call in zip((-1.0, -1.45), calls[operator], strict=True):
                ax.text(middle, y, call, ha="center", va="center", size=10)
        x += gap
    for y, words in ((-1.0, "forward →"), (-1.45, "← backward")):
        ax.text(-0.15, y, words, ha="right", va="center", size=10, color=INK)
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
def who_holds(
    model: SplitModel,
    device_shards: Sequence[Sequence[Tensor]],
    names: Sequence[str] = (),
) -> Figure:
    """Draw every weight of a split model, each part in the color of its device.

    `names` are those of the matrices, by default the names of their layers.

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
    labels = names or [layer for layer, _, _ in drawn]
    for (_, spec, shape), (height, width), label in zip(
        drawn, sides, labels, strict=True
    ):
        y = (tallest - height) / 2
        _weight(ax, spec, (x, y), (height, width), ranks)
        middle = x + width / 2
        ax.text(middle, y - 0.5, label, ha="center", va="bottom", size=8, color=INK)
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
