"""Figure of a mesh: what each rank holds, and its partners along each axis.

Chapter: *composing*.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from d2lmulti.comm.mesh import Mesh

from .style import INK, arrow, box, canvas, device_color, styled

_HELD = "#555555"
_NODE = 4  # ranks per node
_CARD, _HEIGHT, _DOWN = 1.5, 2.5, 4.3  # a card's sides, and from node to node
_LEFT = (0.0, 1.95, 4.25, 6.2)  # of the cards of a node


@styled
def mesh_in_two_nodes() -> Figure:
    """Draw 2 x 2 x 2 ranks: a node per stage, and in each rank what it holds."""
    mesh = Mesh(pipeline=2, data=2, tensor=2)
    figure, ax = canvas(4.1, 4.0, (-2.1, 8.0), (-5.6, 3.8))
    corners = [(_LEFT[r % _NODE], -_DOWN * (r // _NODE)) for r in range(mesh.size)]
    for node, (_, y) in enumerate(corners[::_NODE]):
        low = y - (1.3 if node else 0.2)  # room for the links along data
        box(ax, (-2.1, low), (10.1, _HEIGHT + 1.5), color="#E8E8E8", lw=0)
        for words, up in ((f"node {node}", 2.1), ("weights", 1.3), ("examples", 0.3)):
            ax.text(-0.15, y + up, words, size=9, color=INK, ha="right", va="center")
    for i, axis in enumerate(mesh.axes):
        for a, b in mesh.ranks_along(axis):
            (x, y), (x2, y2) = corners[a], corners[b]
            look: dict[str, Any] = {"color": device_color(i), "lw": 3}
            start, end = (x + _CARD / 2, y), (x2 + _CARD / 2, y2)
            if axis == "pipeline":  # from the lower edge to the upper one
                end = (end[0], y2 + _HEIGHT)
            elif axis == "tensor":  # between neighbors
                start, end = (x + _CARD, y + 1.3), (x2, y2 + 1.3)
            else:  # above node 0 and below node 1, around the card between
                bend, up = (-0.3, _HEIGHT) if a < _NODE else (0.3, 0)
                start, end = (start[0], y + up), (end[0], y2 + up)
                look["connectionstyle"] = f"arc3,rad={bend}"
            arrow(ax, start, end, "-", **look)
    for rank, corner in enumerate(corners):
        _card(ax, corner, rank, **mesh.coordinates(rank))
    lines = [Line2D([], [], color=device_color(i), lw=3) for i in range(3)]
    figure.legend(lines, [*mesh.axes], loc="outside lower center", ncols=3)
    return figure


def _card(
    ax: Axes, corner: tuple[float, float], rank: int, pipeline: int, data: int,
    tensor: int,
) -> None:  # fmt: skip
    """Draw a rank: its quarter of the weights, and its half of the examples."""
    x, y = corner
    box(ax, corner, (_CARD, _HEIGHT), color="white", edge=INK)
    ax.text(x + _CARD / 2, y + 2.1, f"rank {rank}", size=9, ha="center", va="center")
    for column in range(2):
        left = x + 0.2 + 0.55 * column
        for stage in range(2):
            color = _HELD if (stage, column) == (pipeline, tensor) else "white"
            at = (left, y + 1.3 - 0.5 * stage)
            box(ax, at, (0.55, 0.5), "", color, edge=INK, lw=0.8)
        color = _HELD if column == data else "white"
        box(ax, (left, y + 0.15), (0.55, 0.3), "", color, edge=INK, lw=0.8)
