"""Figures to play with: the directives `schedule-slider` and `step-calculator`.

A directive puts controls and data into the page, as a figure whose caption is its
content. The data are computed by the library while the book is built; scripts in _extra
(chart, calculator) draw and compute. No other host is asked for anything.
"""

from __future__ import annotations

import html
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chart_stills
import schedule_charts
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from d2lmulti_cluster import layer_time, nccl, networks
from d2lmulti_cluster.layout import Layout
from d2lmulti_cluster.presets import CLUSTERS
from d2lmulti_cluster.step_time import Step, step_time

ROOT = Path(__file__).resolve().parent.parent
CALCULATOR = ROOT / "_extra" / "calculator"
KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward, input",
    "W": "backward, weights",
}
FIRST_CHART: dict[str, Any] = {"schedule": "1F1B", "devices": 4, "micros": 8}


def dumped(data: object) -> str:
    """Write JSON that may stand in a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def slider(name: str, label: str, values: list[int], first: int) -> str:
    """Write a slider over the places in a list of values."""
    return (
        f'<label>{label} <input type="range" data-part="{name}" min="0" '
        f'max="{len(values) - 1}" value="{values.index(first)}">'
        f"<output>{first}</output></label>"
    )


def tag(name: str, text: str = "", **attributes: object) -> str:
    """Write an element."""
    words = "".join(f' {k.rstrip("_")}="{v}"' for k, v in attributes.items())
    return f"<{name}{words}>{text}</{name}>"


def row_of(cells: Sequence[object]) -> str:
    """Write a row of a table; the first cell is its heading."""
    first, *rest = (html.escape(str(cell)) for cell in cells)
    return tag(
        "tr", tag("th", first, scope="row") + "".join(tag("td", c) for c in rest)
    )


def heads_of(columns: Iterable[str]) -> str:
    """Write the headings of a table's columns."""
    return "".join(tag("th", words, scope="col") for words in columns)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Write a table whose first column names the rows."""
    lines = "".join(map(row_of, rows))
    return (
        '<div class="table" tabindex="0" role="group" aria-label="Numbers">'
        f"<table><thead><tr>{heads_of(heads)}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def short(x: float, places: int = 1) -> str:
    """Write a number without zeros at its end."""
    return f"{round(x, places):g}"


def slider_still(found: dict[str, Any]) -> dict[str, str]:
    """Draw the first chart, and write a table of all schedules of its size."""
    p, m, name = FIRST_CHART["devices"], FIRST_CHART["micros"], FIRST_CHART["schedule"]
    charts = {label: sizes[f"{p} {m}"] for label, sizes in found["charts"].items()}
    chart = charts[name]
    rows = [chart_stills.boxes_of(row, found["stages"][name]) for row in chart["rows"]]
    heads = ["schedule", "idle", "slots", "held at most"]
    return {
        "chart": chart_stills.svg(rows, chart["end"], 5, short, width=520),
        "names": "".join(f"<div>device {d}</div>" for d in range(p)),
        "held": "".join(f"<div>holds {short(n)}</div>" for n in chart["held"]),
        "facts": f"{name} on {p} devices, with {m} micro-batches.",
        "table": f"<p>All schedules on {p} devices with {m} micro-batches:</p>"
        + table(
            heads,
            [
                [label, f"{short(100 * one['idle'])}%", short(one["end"])]
                + [f"{short(max(one['held']))} of {m}"]
                for label, one in charts.items()
            ],
        ),
    }


def drawing(up: str) -> str:
    """Load what draws charts over time; other pages have no use for it."""
    return (
        f'<link rel="stylesheet" href="{up}chart/chart.css">\n'
        f'<script src="{up}chart/chart.js" defer></script>'
    )


def slider_page(up: str) -> str:
    """Write what stands in the page; the script fills in the chart."""
    found = schedule_charts.all_charts()
    still = slider_still(found)
    options = "".join(
        f"<option{' selected' * (name == FIRST_CHART['schedule'])}>{html.escape(name)}"
        "</option>"
        for name in found["charts"]
    )
    kinds = "".join(
        f'<li data-kind="{kind}"{"" if kind in "FB" else " hidden"}>'
        f'<span class="{kind}"></span>{name}</li>'
        for kind, name in KINDS.items()
    )
    return f"""\
{drawing(up)}
<div class="chart-box schedule-slider">
<div class="controls">
<label>Schedule <select data-part="schedule">{options}</select></label>
{slider("devices", "Devices", found["devices"], FIRST_CHART["devices"])}
{slider("micros", "Micro-batches", found["microBatches"], FIRST_CHART["micros"])}
</div>
<div class="rows">
<div data-part="names">{still["names"]}</div>
<div class="chart" data-part="chart" tabindex="0" role="group" \
aria-label="Chart over time, in slots">{still["chart"]}</div>
<div data-part="held">{still["held"]}</div>
</div>
<ul class="legend">{kinds}
<li data-part="later" hidden><span class="mark F"></span>of a later stage</li></ul>
<p data-part="facts" aria-live="polite">{still["facts"]}</p>
<noscript>{still["table"]}</noscript>
<script type="application/json">{dumped(found)}</script>
<script src="{up}chart/schedule_slider.js" defer></script>
</div>
"""


PROGRAMS = {
    program.name: program
    for program in (
        networks.NANOTRON,
        networks.MEGATRON_2021,
        networks.MEGATRON_2022,
        networks.MEGATRON_CORE,
    )
}
CONSTANTS = {
    layer_time: ("KERNEL", "USUAL_SHAPE", "TILES", "FLASH", "FLASH_AMPERE"),
    nccl: ("WITHOUT_LL128", "LL_MOST", "TREE_UP_TO", "SHARE_OF_UNITS"),
    networks: ("CALL",),
}
SCRIPTS = ("kernels", "layers", "replicas", "step_time", "pipeline", "calculator")
TWOS = [2**i for i in range(15)]
NUMBERS = {
    "gpus": TWOS,
    "tensor": TWOS[:5],
    "pipeline": TWOS[:6],
    "micro_batch": TWOS[:4],
    "micro_batches": TWOS[:8],
}
FIRST: dict[str, Any] = {
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


def tables() -> dict[str, Any]:
    """Return all that the calculator knows; constants by their names in the library."""
    constants = {
        name: getattr(module, name)
        for module, names in CONSTANTS.items()
        for name in names
    }
    constants["PROTOCOLS"] = [protocol._asdict() for protocol in nccl.PROTOCOLS]
    return {
        "constants": constants,
        "clusters": {name: asdict(cluster) for name, cluster in CLUSTERS.items()},
        "networks": {
            name: asdict(model) for name, model in networks.TRANSFORMERS.items()
        },
        "programs": {name: asdict(program) for name, program in PROGRAMS.items()},
    }


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


def predicted(gpus: int) -> tuple[Layout, Step]:
    """Predict the first step of the calculator, on so many GPUs."""
    split = FIRST["tensor"] * FIRST["pipeline"]
    names = ("tensor", "pipeline", "micro_batch", "micro_batches", "zero", "recompute")
    layout = Layout(gpus // split, **{name: FIRST[name] for name in names})
    network, cluster = networks.TRANSFORMERS[FIRST["network"]], FIRST["cluster"]
    program = PROGRAMS[FIRST["program"]]
    return layout, step_time(network, layout, CLUSTERS[cluster], program)


def seconds(x: float) -> str:
    """Write a duration with three digits."""
    return f"{1000 * x:.3g} ms" if x < 1 else f"{x:.3g} s"


def gigabytes(x: float) -> str:
    """Write bytes with three digits."""
    return f"{x / 1e9:.3g} GB"


def calculator_still(labels: dict[str, str]) -> dict[str, str]:
    """Draw the first prediction's bars, and write a table by the number of GPUs."""
    layout, step = predicted(FIRST["gpus"])
    card = CLUSTERS[FIRST["cluster"]].device.memory
    memory = {"B": step.memory.states, "F": step.memory.activations}
    time = {"F": step.stages, "I": step.gradients, "W": step.optimizer}
    bars = {
        "time": chart_stills.svg(
            [chart_stills.stacked([*time.items()])], step.seconds, 0.5, seconds
        ),
        "memory": chart_stills.svg(
            [chart_stills.stacked([*memory.items()])], card, 2e10, gigabytes
        ),
    }
    words = {"time": ("stages", "I", "W"), "memory": ("states", "activations")}
    for name, parts, write in (("time", time, seconds), ("memory", memory, gigabytes)):
        bars[f"{name}-parts"] = "".join(
            f'<li><span class="{kind}"></span>{labels[word]}: {write(size)}</li>'
            for word, (kind, size) in zip(words[name], parts.items(), strict=True)
        )
    bars["facts"] = labels["facts"].format(
        seconds=seconds(step.seconds),
        data=layout.data,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        batch=f"{layout.batch:,}",
        tokens=f"{float(f'{step.tokens_per_gpu:.4g}'):,.0f}",
        mfu=f"{100 * step.utilization:.3g}",
    )
    bars["fits"] = labels["fits"].format(
        needed=f"{step.memory.needed / 1e9:.3g}", card=f"{card / 1e9:.3g}"
    )
    heads = ["GPUs", "a step", "tokens a second per GPU", "peak memory"]
    rows = [(gpus, predicted(gpus)[1]) for gpus in NUMBERS["gpus"] if 8 <= gpus <= 1024]
    bars["table"] = table(
        heads,
        [
            [f"{gpus:,}", seconds(one.seconds), f"{one.tokens_per_gpu:,.0f}"]
            + [gigabytes(one.memory.needed)]
            for gpus, one in rows
        ],
    )
    return bars


def calculator_page(labels: dict[str, str], up: str) -> str:
    """Write what stands in the page."""
    data = tables()
    known = {key: html.escape(words) for key, words in labels.items()}
    kinds = "".join(f'<li><span class="{k}"></span>{known[k]}</li>' for k in KINDS)
    scripts = "\n".join(
        f'<script src="{up}calculator/{name}.js" defer></script>' for name in SCRIPTS
    )
    text = dumped({"data": data, "labels": labels})
    still = calculator_still(labels)
    return f"""\
{drawing(up)}
<div class="chart-box step-calculator">
<div class="controls">
{controls(data, labels)}
</div>
<p class="search"><button type="button" data-part="best">{known["best"]}</button>
<span data-part="searched" aria-live="polite"></span></p>
<p data-part="facts" aria-live="polite">{still["facts"]}</p>
<p data-part="fits" aria-live="polite">{still["fits"]}</p>
<div data-part="results">
<p class="head">{known["time"]}</p>
<div data-part="time">{still["time"]}</div>
<ul class="legend" data-part="time-parts">{still["time-parts"]}</ul>
<p class="head">{known["memory"]}</p>
<div data-part="memory">{still["memory"]}</div>
<ul class="legend" data-part="memory-parts">{still["memory-parts"]}</ul>
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
<noscript><p>{known["noscript"]}</p>{still["table"]}</noscript>
<script type="application/json">{text}</script>
{scripts}
</div>
"""


class Interactive(SphinxDirective):
    """A figure to play with; its content is the caption.

    `made_from` are the modules and files, beside the directive's own module, from which
    a kind of figure is made: when one changes, so does the page.
    """

    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (docutils' own way)
    made_from: tuple[Any, ...] = ()

    def run(self) -> list[nodes.Node]:
        for source in (Interactive, type(self), *self.made_from):
            is_path = isinstance(source, Path)
            self.env.note_dependency(
                str(source if is_path else inspect.getfile(source))
            )
        figure = nodes.figure(align="center")
        up = "../" * self.env.docname.count("/")
        figure += nodes.raw("", self.page(up), format="html")
        words, _ = self.parse_inline(" ".join(self.content), lineno=self.lineno)
        figure += nodes.caption("", "", *words)
        self.add_name(figure)
        return [figure]

    def page(self, up: str) -> str:
        """Write the figure; `up` leads from the page to the book's first folder."""
        raise NotImplementedError


class ScheduleSlider(Interactive):
    """Charts of pipeline schedules to choose from."""

    made_from = (schedule_charts, chart_stills)

    def page(self, up: str) -> str:
        return slider_page(up)


class StepCalculator(Interactive):
    """A training step's time and memory."""

    made_from = (chart_stills,)

    def page(self, up: str) -> str:
        words = CALCULATOR / f"labels.{self.config.language}.json"
        self.env.note_dependency(str(words))
        return calculator_page(json.loads(words.read_text("utf-8")), up)


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directives."""
    app.add_directive("schedule-slider", ScheduleSlider)
    app.add_directive("step-calculator", StepCalculator)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
