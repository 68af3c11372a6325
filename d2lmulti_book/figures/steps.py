"""A plan to step through: one picture a round, with a slider, in plain SVG.

The result is a piece of HTML of some ten kilobytes that needs no network: it works on a
page, in a notebook and in a saved file. Chapter: *allreduce*.
"""

from __future__ import annotations

import hashlib
import html
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from string import Template

import numpy as np

from d2lmulti.plans.rounds import Round, Transfer
from d2lmulti.plans.verify import snapshots

from .plans import dark, held_color, held_text
from .style import INK, device_color

Point = tuple[float, float]
_WIDTH, _HEIGHT = 330, 300  # that of a telephone: on it, no letter shrinks
_BOX, _CELL = 112, 26  # width of a vector, height of a cell
_MOST = 480  # pixels on a wide page
_PEN = "currentColor"  # dark on a light page, light on a dark one
_PAGE = Template(resources.files(__package__).joinpath("steps.html").read_text("utf-8"))


@dataclass(frozen=True)
class Steps:
    """HTML that a notebook shows by itself; `html` is its source."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        return self.html


def plan_steps(
    rounds: Iterable[Round],
    ranks: int,
    length: int,
    title: str,
    collective: str = "allreduce",
    caption: str = "",
) -> Steps:
    """Draw the ranks in a circle, with a slider over the rounds of a plan.

    Meant for up to eight ranks. Text and colors are those of `plot_plans`. A `caption`
    stands below; the title is read to those who do not see the picture.
    """
    table = list(rounds)
    edges, frames = snapshots(table, ranks, length, collective)
    name = hashlib.sha256(repr((title, frames)).encode()).hexdigest()[:8]
    places = [_place(rank, ranks) for rank in range(ranks)]
    groups, told = [], []
    for number, held in enumerate(frames):
        transfers = list(table[number - 1]) if number else []
        drawn = [_arrow(t, places, name) for t in transfers]
        drawn += [
            _vector(rank, places[rank], edges, held[rank], transfers)
            for rank in range(ranks)
        ]
        hidden = ' style="display:none"' if number else ""
        groups.append(f"<g{hidden}>{''.join(drawn)}</g>")
        told.append(_told(number, len(table), transfers))
    spans = "".join(
        f"<span{' hidden' if i else ''}>{html.escape(text)}</span>"
        for i, text in enumerate(told)
    )
    return Steps(
        _PAGE.substitute(
            name=name,
            title=html.escape(title, quote=True),
            last=len(table),
            size=f"0 0 {_WIDTH} {_HEIGHT}",
            frames="".join(groups),
            told=spans,
            caption=f"<figcaption>{html.escape(caption)}</figcaption>" * bool(caption),
            width=_MOST,
        )
    )


def _place(rank: int, ranks: int) -> Point:
    """Center of a rank's vector: rank 0 at the top, then clockwise."""
    angle = 2 * math.pi * rank / ranks - math.pi / 2
    return (
        _WIDTH / 2 + math.cos(angle) * (_WIDTH - _BOX - 20) / 2,
        _HEIGHT / 2 + 8 + math.sin(angle) * (_HEIGHT - 2 * _CELL - 20) / 2,
    )


def _vector(
    rank: int, place: Point, edges: np.ndarray, held: np.ndarray, moved: list[Transfer]
) -> str:
    left, top = place[0] - _BOX / 2, place[1] - _CELL / 2
    scale = _BOX / edges[-1]
    out = [
        f'<text x="{place[0]:.0f}" y="{top - 5:.0f}" fill="{_PEN}">rank {rank}</text>'
    ]
    for first, last, inside in zip(edges[:-1], edges[1:], held, strict=True):
        color = _css(held_color(inside))
        ink = "white" if dark(held_color(inside)) else INK
        middle = left + (first + last) / 2 * scale
        out.append(
            f'<rect x="{left + first * scale:.1f}" y="{top:.1f}" '
            f'width="{(last - first) * scale:.1f}" height="{_CELL}" fill="{color}" '
            f'stroke="#999"/><text x="{middle:.1f}" y="{top + 18:.1f}" fill="{ink}">'
            f"{held_text(inside)}</text>"
        )
    for t in moved:
        if t.target == rank:  # a frame around what was written
            out.append(
                f'<rect x="{left + t.target_first * scale:.1f}" y="{top:.1f}" '
                f'width="{t.length * scale:.1f}" height="{_CELL}" fill="none" '
                f'stroke="{_PEN}" stroke-width="3"{_dashes(t)}/>'
            )
    return "".join(out)


def _arrow(t: Transfer, places: list[Point], name: str) -> str:
    (x0, y0), (x1, y1) = places[t.source], places[t.target]
    distance = math.hypot(x1 - x0, y1 - y0)
    dx, dy = (x1 - x0) / distance, (y1 - y0) / distance
    # From border to border of the boxes, ...
    reach = min(
        (_BOX / 2 + 6) / max(abs(dx), 1e-9), (_CELL / 2 + 20) / max(abs(dy), 1e-9)
    )
    # ... and a little to the side, so that two directions are two arrows.
    x0, y0 = x0 + reach * dx - 9 * dy, y0 + reach * dy + 9 * dx
    x1, y1 = x1 - reach * dx - 9 * dy, y1 - reach * dy + 9 * dx
    return (
        f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" '
        f'stroke="{device_color(t.source)}" stroke-width="2.5"{_dashes(t)} '
        f'marker-end="url(#head-{name})"/>'
    )


def _dashes(t: Transfer) -> str:
    return "" if t.add else ' stroke-dasharray="6 4"'


def _css(color: tuple[float, float, float] | str) -> str:
    if isinstance(color, str):
        return color
    return "#" + "".join(f"{int(255 * part + 0.5):02x}" for part in color)


def _told(number: int, rounds: int, transfers: list[Transfer]) -> str:
    if not number:
        return f"Start: every rank has its own vector. {rounds} rounds follow."
    moved = sum(t.length for t in transfers)
    verbs = sorted({"added" if t.add else "copied" for t in transfers})
    return (
        f"Round {number} of {rounds}: {len(transfers)} messages, {moved} numbers "
        f"{' and '.join(verbs)} where the frames are."
    )
