"""The first chart of the schedule slider and of the calculator, drawn without a script.

_extra/chart/chart.js draws the same when it runs; whoever runs no script sees these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

ROW, AXIS, DIGIT = 30, 22, 6.5  # as in chart.js
SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}


class Box(NamedTuple):
    """A box on a device's row."""

    kind: str
    start: float
    end: float
    text: str = ""
    later: bool = False


def boxes_of(row: str, stages: int) -> list[Box]:
    """Read a device's line of words: `F0 -3 B0`."""
    now, boxes = 0.0, []
    for word in row.split():
        kind = word[0].upper()
        start = now
        now += float(word[1:]) if kind == "-" else SLOTS[kind] / stages
        if kind != "-":
            boxes.append(Box(kind, start, now, word[1:], kind != word[0]))
    return boxes


def rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    """Write a rectangle; `x` and `width` are percent of the drawing."""
    place = f'x="{x:.5g}%" y="{y:g}" width="{width:.5g}%" height="{height:g}"'
    return f'<rect class="{kind}" {place}/>'


def stacked(sizes: Mapping[str, float]) -> list[Box]:
    """Place boxes of kinds and sizes one after another."""
    now, boxes = 0.0, []
    for kind, size in sizes.items():
        boxes.append(Box(kind, now, now + size))
        now += size
    return boxes


def svg(
    rows: Sequence[Sequence[Box]],
    end: float,
    step: float,
    write: Callable[[float], str],
    width: int = 0,
) -> Markup:
    """Draw rows of boxes, and an axis with a mark at each step.

    Without a width in pixels, it is as wide as its room, and boxes have no text.
    """
    parts = []
    for d, boxes in enumerate(rows):
        y = ROW * d + 2
        parts.append(rect("idle", 0, y, 100, ROW - 4))
        for kind, start, stop, text, later in boxes:
            x, wide = 100 * start / end, 100 * (stop - start) / end
            parts.append(rect(kind, x, y, wide, ROW - 4))
            if later:
                parts.append(rect("later", x, y + ROW - 8, wide, 4))
            if text and width * wide / 100 > DIGIT * len(text) + 2:
                place = f'x="{x + wide / 2:.5g}%" y="{y + 17}"'
                parts.append(f'<text class="{kind}" {place}>{text}</text>')
    for i in range(int(0.9 * end / step) + 1):
        place = f'x="{100 * i * step / end:.5g}%" y="{ROW * len(rows) + 16}"'
        parts.append(f'<text class="time" {place}>{write(i * step)}</text>')
    size = f'width="{width or "100%"}" height="{ROW * len(rows) + AXIS}"'
    return Markup(f'<svg {size} aria-hidden="true">{"".join(parts)}</svg>')
