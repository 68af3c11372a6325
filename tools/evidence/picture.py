"""One picture of the record: rounding on the left, planted bugs on the right.

Each mark is a run, or several whose difference is the same to two digits. The colors
are those of the page, so that it can be read in light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .markdown import small
from .strategies import LIMIT, ONE

WIDTH, LEFT, RIGHT, ROW = 400, 14, 14, 46
FIRST, LAST = -17, 5  # powers of ten at the ends of the axis
STYLE = (
    "width:100%;max-width:40rem;height:auto;display:block;margin:0 auto;"
    "color:var(--pst-color-text-base,#222)"
)
Strip = tuple[str, str, list[float]]  # what was run, a color, the differences


def in_float64(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of all strategies and meshes that ran in float64."""
    tables = [record[name]["rows"] for name in ("strategies", "mesh") if name in record]
    return [r for t in tables for r in t if r["ranks"] and r["dtype"] == "float64"]


def strips(record: Mapping[str, Any]) -> list[Strip]:
    """Return the differences in float64, and those that planted bugs make."""
    both = in_float64(record)
    inside = [r["difference"] for r in both if r["engine"] == ONE]
    between = [r["difference"] for r in both if r["engine"] != ONE]
    bugs = record.get("bugs", {"rows": []})["rows"]
    moved = [r["difference"] for r in bugs if r.get("difference")]
    found = [
        ("Without bugs, simulated devices", "var(--pst-color-info,#0b7285)", inside),
        ("Without bugs, several processes", "var(--pst-color-info,#0b7285)", between),
        ("With a planted bug", "var(--pst-color-danger,#c92a2a)", moved),
    ]
    return [strip for strip in found if strip[2]]


def alt(found: Sequence[Strip]) -> str:
    """Describe the picture in words."""
    parts = [
        f"{name}: {small(min(values))} to {small(max(values))}"
        for name, _, values in found
    ]
    return f"Differences from the weights of one device, log scale. {'; '.join(parts)}."


def x_of(difference: float) -> float:
    """Place a difference on the axis; the ends hold what lies beyond them."""
    power = math.log10(difference) if difference > 0 else FIRST
    power = min(max(power, FIRST), LAST)
    return LEFT + (power - FIRST) / (LAST - FIRST) * (WIDTH - LEFT - RIGHT)


def picture(record: Mapping[str, Any]) -> str:
    """Draw the picture as SVG, to stand in the page itself."""
    found = strips(record)
    if not found:
        return ""
    height = len(found) * ROW + 48
    bottom = len(found) * ROW + 12
    words = alt(found)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}" '
        f'style="{STYLE}" font-family="sans-serif" font-size="12" fill="currentColor">',
        f"<title>{words}</title>",
    ]
    for i, (name, color, values) in enumerate(found):
        parts += _strip(name, color, values, 12 + i * ROW)
    parts.append(f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="currentColor"/>')
    for power in range(FIRST + 1, LAST + 1, 4):
        at = x_of(10.0**power)
        label = "1" if power == 0 else f'10<tspan dy="-5" font-size="9">{power}</tspan>'
        parts.append(f'<path d="M{at:.1f} {bottom}v4" stroke="currentColor"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
        )
    parts.append("</svg>")
    svg = "\n".join(parts)
    return f"```{{raw}} html\n{svg}\n```\n\n{_caption(record)}"


def _strip(name: str, color: str, values: list[float], top: float) -> list[str]:
    """Draw a strip: its name, the limit, and a bar for each difference, once."""
    places = sorted({f"{x_of(value):.1f}" for value in values})
    bars = "".join(f"M{x} {top + 16}v18" for x in places)
    limit = x_of(LIMIT["float64"])
    return [
        f'<text x="{LEFT}" y="{top + 8}">{name} ({len(values)})</text>',
        f'<path d="M{limit:.1f} {top + 13}v24" stroke="currentColor" '
        'stroke-dasharray="4 3"/>',
        f'<path d="{bars}" stroke="{color}" stroke-width="2" fill="none"/>',
    ]


def _caption(record: Mapping[str, Any]) -> str:
    """Explain the picture, and what is not in it."""
    text = (
        "*Largest difference from the weights of one device after 12 steps, divided by "
        "the largest weight of the same tensor, for every combination of strategy, "
        "engine, and backend. A difference right of the dashed line, "
        f"{small(LIMIT['float64'])}, counts as wrong.*"
    )
    bugs = record.get("bugs", {"rows": []})["rows"]
    if measured := [r for r in bugs if "difference" in r]:
        kept = sum((r["difference"] or 0) <= LIMIT["float64"] for r in measured)
        return text[:-1] + (
            f" {kept} of the {len(measured)} planted bugs do not change the weights of "
            "these runs by more than rounding; other tests notice them.*"
        )
    return text[:-1] + " The planted bugs' differences have not been measured yet.*"
