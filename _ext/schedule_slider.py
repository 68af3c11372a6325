"""The directive `schedule-slider`: charts of pipeline schedules to choose from.

It puts the controls and the charts' file into the page, as a figure whose caption is
the directive's content. The charts are _static/schedules.json, which
tools/schedule_vectors.py writes; _static/schedule_slider.js draws them, without asking
anybody else for anything.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

STATIC = Path(__file__).resolve().parent.parent / "_static"
KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward, input",
    "W": "backward, weights",
}
FIRST = {"schedule": "1F1B", "devices": 4, "micros": 8}


def slider(name: str, label: str, values: list[int], first: int) -> str:
    """Write a slider over the places in a list of values."""
    return (
        f'<label>{label} <input type="range" data-part="{name}" min="0" '
        f'max="{len(values) - 1}" value="{values.index(first)}">'
        f"<output>{first}</output></label>"
    )


def page(vectors: str) -> str:
    """Write what stands in the page; the script fills in the chart."""
    found = json.loads(vectors)
    options = "".join(
        f"<option{' selected' * (name == FIRST['schedule'])}>{html.escape(name)}"
        "</option>"
        for name in found["charts"]
    )
    kinds = "".join(
        f'<li data-kind="{kind}"><span class="{kind}"></span>{name}</li>'
        for kind, name in KINDS.items()
    )
    return f"""\
<div class="chart-box schedule-slider">
<div class="controls">
<label>Schedule <select data-part="schedule">{options}</select></label>
{slider("devices", "Devices", found["devices"], FIRST["devices"])}
{slider("micros", "Micro-batches", found["microBatches"], FIRST["micros"])}
</div>
<div class="rows">
<div data-part="names"></div>
<div class="chart" data-part="chart" tabindex="0" role="group" \
aria-label="Chart over time, in slots"></div>
<div data-part="held"></div>
</div>
<ul class="legend">{kinds}
<li data-part="later"><span class="mark F"></span>of a later stage</li></ul>
<p data-part="facts" aria-live="polite"></p>
<noscript><p>A script draws the charts, and this browser runs none.</p></noscript>
<script type="application/json">{vectors}</script>
</div>
"""


class ScheduleSlider(SphinxDirective):
    """A figure to try schedules in; its content is the caption."""

    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (docutils' own way)

    def run(self) -> list[nodes.Node]:
        file = STATIC / "schedules.json"
        self.env.note_dependency(str(file))
        figure = nodes.figure(align="center")
        figure += nodes.raw("", page(file.read_text(encoding="utf-8")), format="html")
        words, _ = self.parse_inline(" ".join(self.content), lineno=self.lineno)
        figure += nodes.caption("", "", *words)
        self.add_name(figure)
        return [figure]


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("schedule-slider", ScheduleSlider)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
