"""The directive `step-calculator`: a training step's time and memory, to play with.

It puts the controls, the library's tables and the words into the page, as a figure
whose caption is the directive's content. The scripts in _extra/calculator do the sums;
tools/calculator_data.py writes the tables. Nobody else is asked for anything.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).resolve().parent.parent / "_extra" / "calculator"
SCRIPTS = ("kernels", "layers", "replicas", "step_time", "pipeline", "calculator")
TWOS = [2**i for i in range(15)]
NUMBERS = {
    "gpus": TWOS,
    "tensor": TWOS[:5],
    "pipeline": TWOS[:6],
    "micro_batch": TWOS[:4],
    "micro_batches": TWOS[:8],
}
FIRST = {
    "network": "llama3-8b",
    "cluster": "dgx-h100",
    "program": "nanotron",
    "gpus": 64,
    "tensor": 2,
    "pipeline": 4,
    "micro_batch": 1,
    "micro_batches": 16,
    "zero": 1,
    "recompute": "none",
}
KINDS = ("F", "B", "I", "W")


def choice(name: str, label: str, options: dict[str, str]) -> str:
    """Write a list to choose from: value -> what stands there."""
    lines = []
    for value, words in options.items():
        first = " selected" if value == str(FIRST[name]) else ""
        lines.append(
            f'<option value="{html.escape(value)}"{first}>{html.escape(words)}</option>'
        )
    select = f'<select data-part="{name}">{"".join(lines)}</select>'
    return f"<label>{html.escape(label)} {select}</label>"


def controls(tables: dict[str, dict[str, object]], labels: dict[str, str]) -> str:
    """Write all controls."""
    offered: dict[str, dict[str, str]] = {
        "network": {name: name for name in tables["networks"]},
        "cluster": {name: name for name in tables["clusters"]},
        "program": {name: name for name in tables["programs"]},
    }
    for name, values in NUMBERS.items():
        offered[name] = {str(value): f"{value:,}" for value in values}
    for name, kinds in (("zero", "0123"), ("recompute", ("none", "selective", "full"))):
        offered[name] = {kind: labels[f"{name} {kind}"] for kind in kinds}
    return "\n".join(choice(name, labels[name], offered[name]) for name in FIRST)


def page(labels: dict[str, str], up: str) -> str:
    """Write what stands in the page; `up` leads from it to the book's first folder."""
    text = (FOLDER / "data.json").read_text(encoding="utf-8")
    known = {key: html.escape(words) for key, words in labels.items()}
    kinds = "".join(f'<li><span class="{k}"></span>{known[k]}</li>' for k in KINDS)
    scripts = "\n".join(
        f'<script src="{up}calculator/{name}.js" defer></script>' for name in SCRIPTS
    )
    data = json.dumps({"data": json.loads(text), "labels": labels}, ensure_ascii=False)
    data = data.replace("<", "\\u003c")
    return f"""\
<div class="chart-box step-calculator">
<div class="controls">
{controls(json.loads(text), labels)}
</div>
<p data-part="facts" aria-live="polite"></p>
<p data-part="fits" aria-live="polite"></p>
<div data-part="results">
<p class="head">{known["time"]}</p>
<div data-part="time"></div>
<ul class="legend" data-part="time-parts"></ul>
<p class="head">{known["memory"]}</p>
<div data-part="memory"></div>
<ul class="legend" data-part="memory-parts"></ul>
<div data-part="played">
<div class="rows two">
<div data-part="names"></div>
<div class="chart" data-part="chart" tabindex="0" role="group" \
aria-label="{known["chart"]}"></div>
</div>
<ul class="legend">{kinds}</ul>
<p data-part="note"></p>
</div>
</div>
<noscript><p>{known["noscript"]}</p></noscript>
<script type="application/json">{data}</script>
{scripts}
</div>
"""


class StepCalculator(SphinxDirective):
    """A figure that computes; its content is the caption."""

    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (docutils' own way)

    def run(self) -> list[nodes.Node]:
        words = FOLDER / f"labels.{self.config.language}.json"
        for file in (FOLDER / "data.json", words):
            self.env.note_dependency(str(file))
        labels = json.loads(words.read_text(encoding="utf-8"))
        up = "../" * self.env.docname.count("/")
        figure = nodes.figure(align="center")
        figure += nodes.raw("", page(labels, up), format="html")
        caption, _ = self.parse_inline(" ".join(self.content), lineno=self.lineno)
        figure += nodes.caption("", "", *caption)
        self.add_name(figure)
        return [figure]


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("step-calculator", StepCalculator)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
