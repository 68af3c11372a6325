"""The recorded graph of an expression, with its pullbacks. Chapter: *backend*."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Circle

from .style import INK, PALE, arrow, canvas, device_color, styled

_NODES = {  # name: (x, y, text, leaf)
    "x": (0.0, 2.6, "$x$", True),
    "w": (0.0, 0.2, "$w$", True),
    "product": (2.2, 1.4, "$xw$", False),
    "third": (2.2, 2.6, "$x/3$", False),
    "sum": (4.4, 2.0, "$+$", False),
    "difference": (6.4, 1.3, "$-$", False),
    "result": (8.4, 2.0, r"$\cdot\,x$", False),
}
_EDGES = (  # from, to, what the pullback does with d, bend
    ("x", "third", "$d/3$", 0.0),
    ("x", "product", "$d\\,w$", 0.0),
    ("w", "product", "$d\\,x$", 0.0),
    ("third", "sum", "$d$", 0.0),
    ("product", "sum", "$d$", 0.0),
    ("sum", "difference", "$d$", 0.0),
    ("w", "difference", "$-d$", 0.12),
    ("difference", "result", "$d\\,x$", 0.0),
    ("x", "result", "$d\\,(xw+x/3-w)$", -0.3),
)


@styled
def expression_graph() -> Figure:
    """Draw (xw + x/3 - w)x as a graph; each edge has its pullback written on it."""
    figure, ax = canvas(8, 4.0, (-0.6, 9), (-0.4, 4.3))
    ax.set_aspect("equal")
    for source, target, words, bend in _EDGES:
        (x0, y0, *_), (x1, y1, *_) = _NODES[source], _NODES[target]
        curve = f"arc3,rad={bend}"
        arrow(ax, (x0, y0), (x1, y1), shrinkA=24, shrinkB=24, connectionstyle=curve)
        x = (x0 + x1) / 2 + bend * (y1 - y0) / 2
        y = (y0 + y1) / 2 - bend * (x1 - x0) / 2
        ax.text(x, y + 0.12, words, ha="center", va="bottom", size=10.5,
                color=device_color(5))  # fmt: skip
    for x, y, words, leaf in _NODES.values():
        face = device_color(0) if leaf else PALE
        ax.add_patch(Circle((x, y), 0.42, fc=face, ec="white", zorder=2))
        ax.text(x, y, words, ha="center", va="center", size=11,
                color="white" if leaf else INK, zorder=3)  # fmt: skip
    return figure
