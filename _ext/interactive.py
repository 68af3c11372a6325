"""Figures to play with: the directives `schedule-slider` and `step-calculator`.

A directive puts controls and data into the page, as a figure whose caption is its
content. The data are computed by the library while the book is built; scripts in _extra
(chart, calculator) draw and compute. No other host is asked for anything.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chart_stills
import jinja2
import schedule_charts
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from d2lmulti_cluster import layer_time, nccl, networks
from d2lmulti_cluster.layout import Layout
from d2lmulti_cluster.presets import CLUSTERS
from d2lmulti_cluster.step_time import Step, step_time

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CALCULATOR = ROOT / "_extra" / "calculator"
KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "backward, input",
    "W": "backward, weights",
}
FIRST_CHART: dict[str, Any] = {"schedule": "1F1B", "devices": 4, "micros": 8}
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
COMPACT: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
TEMPLATES.policies["json.dumps_kwargs"] = COMPACT


def rendered(template: str, **facts: Any) -> str:
    """Write what stands in the page, from a file of the folder templates."""
    return TEMPLATES.get_template(template).render(facts)


def short(x: float, places: int = 1) -> str:
    """Write a number without zeros at its end."""
    return f"{round(x, places):g}"


def slider_page(up: str) -> str:
    """Write the first chart and a table of all of its size; a script draws others."""
    p, m, name = FIRST_CHART["devices"], FIRST_CHART["micros"], FIRST_CHART["schedule"]
    found = schedule_charts.all_charts()
    charts = {label: sizes[f"{p} {m}"] for label, sizes in found["charts"].items()}
    chart = charts[name]
    drawn = [chart_stills.boxes_of(row, found["stages"][name]) for row in chart["rows"]]
    rows = [
        [label, f"{short(100 * one['idle'])}%", short(one["end"])]
        + [f"{short(max(one['held']))} of {m}"]
        for label, one in charts.items()
    ]
    return rendered(
        "schedule_slider.html",
        up=up,
        first=FIRST_CHART,
        data=found,
        charts=charts,
        kinds=KINDS,
        still=chart_stills.svg(drawn, chart["end"], 5, short, width=520),
        rows=rows,
        short=short,
    )


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
RECOMPUTED = ("none", "selective", "full")
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


def calculator_page(labels: dict[str, str], up: str) -> str:
    """Write the first prediction and a table by GPUs; a script computes others."""
    data = tables()
    offered = {
        name: {known: known for known in data[f"{name}s"]}
        for name in ("network", "cluster", "program")
    }
    for name, values in NUMBERS.items():
        offered[name] = {value: f"{value:,}" for value in values}
    for name, kinds in (("zero", range(4)), ("recompute", RECOMPUTED)):
        offered[name] = {kind: labels[f"{name} {kind}"] for kind in kinds}
    layout, step = predicted(FIRST["gpus"])
    card = CLUSTERS[FIRST["cluster"]].device.memory
    time = {"F": step.stages, "I": step.gradients, "W": step.optimizer}
    memory = {"B": step.memory.states, "F": step.memory.activations}
    bars = {
        "time": bar(time, ("stages", "I", "W"), step.seconds, 0.5, seconds),
        "memory": bar(memory, ("states", "activations"), card, 2e10, gigabytes),
    }
    steps = {n: predicted(n)[1] for n in NUMBERS["gpus"] if 8 <= n <= 1024}
    rows = [
        [f"{gpus:,}", seconds(one.seconds), f"{one.tokens_per_gpu:,.0f}"]
        + [gigabytes(one.memory.needed)]
        for gpus, one in steps.items()
    ]
    return rendered(
        "step_calculator.html",
        up=up,
        first=FIRST,
        data=data,
        labels=labels,
        offered=offered,
        kinds=KINDS,
        scripts=SCRIPTS,
        bars=bars,
        rows=rows,
        facts=labels["facts"].format(
            seconds=seconds(step.seconds),
            data=layout.data,
            tensor=layout.tensor,
            pipeline=layout.pipeline,
            batch=f"{layout.batch:,}",
            tokens=f"{float(f'{step.tokens_per_gpu:.4g}'):,.0f}",
            mfu=f"{100 * step.utilization:.3g}",
        ),
        fits=labels["fits"].format(
            needed=f"{step.memory.needed / 1e9:.3g}", card=f"{card / 1e9:.3g}"
        ),
    )


def bar(
    parts: dict[str, float],
    words: Sequence[str],
    end: float,
    step: float,
    write: Callable[[float], str],
) -> tuple[str, list[tuple[str, str, str]]]:
    """Draw a bar of parts, and list their kinds, their words, and their sizes."""
    drawn = chart_stills.svg([chart_stills.stacked(parts)], end, step, write)
    sizes = map(write, parts.values())
    return drawn, list(zip(parts, words, sizes, strict=True))


class Interactive(SphinxDirective):
    """A figure to play with; its content is the caption.

    `made_from` are the modules and files, beside the directive's own module, from which
    a kind of figure is made: when one changes, so does the page.
    """

    has_content = True
    option_spec = {"name": directives.unchanged}  # noqa: RUF012 (docutils' own way)
    made_from: tuple[Any, ...] = ()

    def run(self) -> list[nodes.Node]:
        pages = (HERE / "templates").iterdir()
        for source in (Interactive, type(self), *self.made_from, *pages):
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
