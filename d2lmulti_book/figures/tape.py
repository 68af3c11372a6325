"""The recorded graph of an expression, with its gradients. Chapter: *backend*."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Circle

from .style import INK, PALE, arrow, canvas, device_color, styled

_BACK = "#B34700"  # darker than device 5, for small text on white
_NODES = {  # name: (x, y, value, operation)
    "x": (0.0, 2.9, "$x = 2$", ""),
    "w": (0.0, 0.1, "$w = 3$", ""),
    "third": (3.1, 3.6, "0.67", "$x/3$"),
    "product": (3.1, 1.6, "6", r"$x \cdot w$"),
    "sum": (5.3, 2.65, "6.67", "$+$"),
    "difference": (7.4, 1.9, "3.67", "$-$"),
    "result": (9.6, 2.9, "7.33", r"$\cdot\, x$"),
}
_EDGES = (  # from, to, the gradient sent back, where it is written, bend of the edge
    ("x", "third", r"$d/3 = 0.67$", (1.98, 3.74), 0.0),
    ("x", "product", r"$d \cdot w = 6$", (1.95, 2.6), 0.0),
    ("w", "product", r"$d \cdot x = 4$", (1.2, 1.32), 0.0),
    ("third", "sum", "$d = 2$", (4.4, 3.48), 0.0),
    ("product", "sum", "$d = 2$", (3.98, 2.48), 0.0),
    ("sum", "difference", "$d = 2$", (6.53, 2.66), 0.0),
    ("w", "difference", "$-d = {-}2$", (4.2, 0.95), 0.16),
    ("difference", "result", r"$d \cdot x = 2$", (8.3, 2.78), 0.0),
    ("x", "result", r"$d \cdot 3.67 = 3.67$", (4.8, 5.58), -0.48),
)
_SUMS = (  # what arrives at the result, and what the leaves get
    (9.6, 3.65, "$d = 1$"),
    (-0.35, 2.05, "0.67 + 6 + 3.67\n= 10.33"),
    (0.0, -0.62, "4 − 2 = 2"),
)


@styled
def expression_graph() -> Figure:
    """Draw (xw + x/3 - w)x at x = 2 and w = 3: values forward, gradients backward."""
    figure, ax = canvas(7.4, 4.3, (-1.2, 10.2), (-0.85, 5.8))
    ax.set_aspect("equal")
    back = {"color": _BACK, "size": 10.5, "ha": "center", "va": "center"}
    for source, target, words, place, bend in _EDGES:
        (x0, y0, *_), (x1, y1, *_) = _NODES[source], _NODES[target]
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        left, up = (y0 - y1) / length, (x1 - x0) / length  # across the edge
        for side, color, line in ((-0.12, INK, "-"), (0.12, _BACK, (0, (4, 2)))):
            start = (x0 + side * left, y0 + side * up)
            end = (x1 + side * left, y1 + side * up)
            if color == _BACK:  # the other way around
                start, end, bend = end, start, -bend
            curve = f"arc3,rad={bend}"
            arrow(ax, start, end, gap=26, color=color, ls=line, connectionstyle=curve)
        ax.text(*place, words, **back)
    for x, y, value, operation in _NODES.values():
        face = PALE if operation else device_color(0)
        ax.add_patch(Circle((x, y), 0.5, fc=face, ec="white", zorder=5))
        ink = INK if operation else "white"
        ax.text(x, y, value, ha="center", va="center", size=10.5, color=ink, zorder=6)
        ax.text(x, y - 0.76, operation, ha="center", va="center", size=11, color=INK)
    for x, y, words in _SUMS:
        ax.text(x, y, words, **back)
    return figure
