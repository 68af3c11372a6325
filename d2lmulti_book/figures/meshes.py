"""Figures of a mesh: each rank at its coordinates, and the bytes per axis.

Chapter: *composing*.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from d2lmulti.comm.mesh import Mesh

from .style import INK, canvas, device_color, styled, subplots

_AXES = 3  # more are hard to distinguish in a figure
_STEPS = np.array([(0.0, -2.2), (2.6, 0.0), (1.1, 0.75)])  # one along each axis
_LABEL_AT = (0.5, 0.3, 0.5)  # fraction of a line at which no other line crosses
_NODE = 4  # ranks per node, in the picture of two nodes
_NAME_AT = ((-0.4, -1.1), (2.4, 0.98), (0.1, 0.62))  # next to one edge of each axis


@styled
def mesh_in_two_nodes() -> Figure:
    """Draw 2 x 2 x 2 ranks as a cube whose upper and lower faces are the two nodes."""
    mesh = Mesh(data=2, tensor=2, pipeline=2)
    points = [np.array([*mesh.coordinates(rank).values()]) for rank in range(8)]
    places = [point @ _STEPS for point in points]
    figure, ax = canvas(4.1, 3.2, (-0.85, 4.3), (-2.7, 1.15))
    ax.set_aspect("equal")
    for node in range(2):
        corners = [places[_NODE * node + i] for i in (0, 2, 3, 1)]
        center = sum(corners) / _NODE
        ax.fill(*np.array([center + 1.3 * (c - center) for c in corners]).T,
                color="#E8E8E8", zorder=0)  # fmt: skip
        x, y = center + np.array([0.3, -0.08])
        ax.text(x, y, f"node {node}", size=10, color=INK, ha="center", va="center")
    for i, axis in enumerate(mesh.axes):
        for a, b in mesh.ranks_along(axis):
            ax.plot(*np.array([places[a], places[b]]).T, color=device_color(i), lw=3)
        ax.text(*_NAME_AT[i], axis, size=10, color=INK, ha="center", va="center")
    for rank, (x, y) in enumerate(places):
        ax.plot(x, y, "o", ms=19, mfc="white", mec=INK, zorder=3)
        ax.text(x, y, str(rank), ha="center", va="center", size=10, zorder=4)
        at = ",".join(str(i) for i in points[rank])
        ax.text(x + 0.12, y - 0.33, at, size=9, color=INK)
    return figure


@styled
def moved_on_mesh(mesh: Mesh, links: Mapping[tuple[int, int], int]) -> Figure:
    """Draw the ranks of a mesh, and a line for every pair that exchanged messages.

    `links` are the bytes of a ledger by source and target. The width of a line shows
    the pair's bytes in both directions, its color the axis along which its ends differ.
    A mesh has at most three axes.
    """
    # From the fastest axis on, the neighbors: they are drawn nearest.
    first = _AXES - len(mesh.axes)
    steps = _STEPS[first:]
    places = [
        np.array([*mesh.coordinates(rank).values()]) @ steps
        for rank in range(mesh.size)
    ]
    pairs: dict[tuple[int, int], int] = {}
    for (a, b), size in links.items():
        pairs[min(a, b), max(a, b)] = pairs.get((min(a, b), max(a, b)), 0) + size
    figure, (ax,) = subplots(1, 1, 4.1, 3.9)
    largest = max(pairs.values(), default=1)
    for (a, b), size in pairs.items():
        axis = _axis_between(mesh, a, b)
        label_at = places[a] + _LABEL_AT[first + axis] * (places[b] - places[a])
        ends = np.array([places[a], places[b]]).T
        ax.plot(*ends, color=device_color(axis), lw=1 + 6 * size / largest)
        ax.text(
            *label_at, f"{size / 1000:,.0f} kB", size=9, color=INK, zorder=5,
            ha="center", va="center", bbox={"fc": "white", "ec": "none", "pad": 1},
        )  # fmt: skip
    for rank, (x, y) in enumerate(places):
        ax.plot(x, y, "o", ms=21, mfc="white", mec=INK, zorder=3)
        ax.text(x, y, str(rank), ha="center", va="center", size=10, zorder=4)
    ax.margins(0.14)
    ax.set_aspect("equal")
    ax.axis("off")
    handles = [
        Line2D([], [], color=device_color(i), lw=3, label=axis)
        for i, axis in enumerate(mesh.axes)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=_AXES)
    return figure


def _axis_between(mesh: Mesh, a: int, b: int) -> int:
    at_a, at_b = mesh.coordinates(a), mesh.coordinates(b)
    (axis,) = (i for i, axis in enumerate(mesh.axes) if at_a[axis] != at_b[axis])
    return axis
