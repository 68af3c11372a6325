"""Slider and calculator show what the library computes: in data, scripts, pages."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
import schedule_charts
from book.conftest import page
from chart_stills import boxes_of
from interactive import PROGRAMS, TWOS, tables

from d2lmulti.plans.pipeline import Backward, BackwardInput, BackwardWeight, Forward
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti_cluster.layout import RECOMPUTE, ImpossibleLayout, Layout
from d2lmulti_cluster.networks import TRANSFORMERS
from d2lmulti_cluster.presets import CLUSTERS
from d2lmulti_cluster.step_time import step_time

# -- the schedule slider ---------------------------------------------------------------

STORED = json.loads(json.dumps(schedule_charts.all_charts()))
KINDS = {"F": Forward, "B": Backward, "I": BackwardInput, "W": BackwardWeight}


@pytest.mark.parametrize("label", STORED["charts"])
def test_the_rows_are_the_schedule(label):
    """Every device's computations in order, and nothing begins before its input."""
    name, chunks = schedule_charts.OFFERED[label]
    for size, chart in STORED["charts"][label].items():
        p, m = map(int, size.split())
        ends: dict[tuple[str, int, int], float] = {}
        starts: list[tuple[float, tuple[str, int, int]]] = []
        for d, row in enumerate(chart["rows"]):
            computed = [
                i for i in SCHEDULES[name](p, m, chunks)[d] if type(i) in KINDS.values()
            ]
            first = min(i.stage for i in computed)
            for box, i in zip(boxes_of(row, chunks), computed, strict=True):
                assert KINDS[box.kind] is type(i) and int(box.text) == i.micro
                assert box.later == (i.stage > first)
                kind = {"I": "B"}.get(box.kind, box.kind)
                ends[kind, i.stage, i.micro] = box.end
                step = {"F": -1, "B": 1, "W": 0}[kind]
                before = ("B" if kind == "W" else kind, i.stage + step, i.micro)
                starts.append((box.start, before))
        assert max(ends.values()) == chart["end"]
        for start, before in starts:
            assert ends.get(before, 0) <= start


# -- what the pages hold ---------------------------------------------------------------


def test_a_page_holds_its_data_and_others_hold_none(small_book):
    two = page(small_book, "two")
    for name, expected in (("a-slider", STORED), ("a-calculator", tables())):
        (script,) = two.find(id=name).find_all("script", type="application/json")
        held = json.loads(script.string)
        assert held.get("data", held) == json.loads(json.dumps(expected))
        assert len(script.string.encode()) <= 60_000
    caption = two.find(id="a-slider").figcaption.get_text()
    assert re.search(r"Figure 2\.1\s*Choose a schedule", caption)
    one = str(page(small_book, "one"))
    assert not any(name in one for name in ("application/json", "chart.js"))


# -- in a browser ----------------------------------------------------------------------


@pytest.fixture
def window(visit, small_book):
    """The page with both, in a narrow window."""
    return visit(small_book / "chapters" / "two.html", 360)


def answer(model: str, layout: Layout, cluster: str, program: str) -> Any:
    """Predict a step; None for what is no layout."""
    network, machines = TRANSFORMERS[model], CLUSTERS[cluster]
    try:
        step = step_time(network, layout, machines, PROGRAMS[program])
    except ImpossibleLayout:
        return None
    names = "seconds stages gradients optimizer tokens_per_gpu utilization".split()
    memory = ("needed", "states", "activations")
    found = {name: getattr(step, name) for name in names}
    return found | {name: getattr(step.memory, name) for name in memory}


@pytest.mark.browser
def test_the_scripts_predict_what_the_library_does(window):
    rng = np.random.default_rng(14)

    def some(values: Any) -> Any:
        values = list(values)
        return values[rng.integers(len(values))]

    asked, answers = [], []
    for _ in range(300):
        model, cluster, program = some(TRANSFORMERS), some(CLUSTERS), some(PROGRAMS)
        layout = Layout(
            data=some((1, 2, 4, 7, 8, 64, 512)),
            tensor=some((1, 2, 3, 4, 8, 16)),
            pipeline=some((1, 2, 3, 4, 8, 16)),
            micro_batch=some((1, 2, 4)),
            micro_batches=some((1, 4, 8, 32)),
            zero=some((0, 1, 2, 3)),
            recompute=some(RECOMPUTE),
            chunks=some((1, 1, 1, 2)),
            sequence=some((True, False)),
        )
        asked.append([model, asdict(layout), cluster, program])
        answers.append(answer(model, layout, cluster, program))
    found = window.evaluate(
        """(asked) => {
          const held = document.querySelector(".step-calculator script");
          const { data } = JSON.parse(held.textContent);
          const step = stepModel(data.constants);
          return asked.map(([network, layout, cluster, program]) =>
            step(data.networks[network], layout, data.clusters[cluster],
                 data.programs[program]));
        }""",
        asked,
    )
    for vector, expected, step in zip(asked, answers, found, strict=True):
        if expected is None:
            assert step is None, vector
            continue
        some_of_it = {name: step[name] for name in expected}
        assert some_of_it == pytest.approx(expected, rel=1e-9, abs=1e-30), vector
    assert sum(expected is not None for expected in answers) > 200


@pytest.mark.browser
def test_the_calculators_chart_is_the_schedule_1f1b(window):
    charts = STORED["charts"]["1F1B"]
    found = window.evaluate(
        "(sizes) => sizes.map(([p, m]) =>"
        "playPipeline(Array(p).fill({ forward: 1, backward: 2 }), m))",
        [list(map(int, size.split())) for size in charts],
    )
    order = ("kind", "start", "end", "micro", "later")
    for chart, played in zip(charts.values(), found, strict=True):
        rows = [[tuple(box[key] for key in order) for box in r] for r in played["rows"]]
        assert rows == [boxes_of(row, 1) for row in chart["rows"]]
        assert played["end"] == chart["end"]


@pytest.mark.browser
def test_the_keyboard_chooses_a_layout_and_the_numbers_are_the_librarys(window):
    box = window.locator(".step-calculator")
    facts = box.locator('[data-part="facts"]')

    def shown(layout: Layout, cluster: str = "dgx-h100", program: str = "nanotron"):
        step = answer("llama3-8b", layout, cluster, program)
        said = re.search(r"([\d,.]+) tokens a second", facts.inner_text())[1]
        needed = re.search(r"needs ([\d,.]+) ", fits())[1]
        numbers = [float(text.replace(",", "")) for text in (said, needed)]
        expected = [step["tokens_per_gpu"], step["needed"] / 1e9]
        return numbers == pytest.approx(expected, rel=0.006)

    def fits() -> str:
        return box.locator('[data-part="fits"]').inner_text()

    assert shown(Layout(8, 2, 4, 1, 16, zero=1)), facts.inner_text()
    box.locator('[data-part="gpus"]').focus()
    window.keyboard.press("ArrowDown")  # to 128 GPUs
    assert shown(Layout(16, 2, 4, 1, 16, zero=1)), facts.inner_text()
    for cluster, program in zip(CLUSTERS, [*PROGRAMS] * 9, strict=False):
        box.locator('[data-part="cluster"]').select_option(cluster)
        box.locator('[data-part="program"]').select_option(program)
        assert shown(Layout(16, 2, 4, 1, 16, zero=1), cluster, program), cluster
    box.locator('[data-part="cluster"]').select_option("dgx-h100")
    box.locator('[data-part="program"]').select_option("nanotron")
    box.locator('[data-part="gpus"]').focus()
    window.keyboard.press("Home")  # to one GPU
    assert not box.locator('[data-part="results"]').is_visible()
    for name in ("tensor", "pipeline"):
        box.locator(f'[data-part="{name}"]').focus()
        window.keyboard.press("Home")
    assert shown(Layout(1, 1, 1, 1, 16, zero=1)), facts.inner_text()
    assert "does not fit" in fits()
    assert not re.search(r"\{\w+\}", box.inner_text())


@pytest.mark.browser
def test_the_best_layout_is_the_fastest_that_fits(window):
    box = window.locator(".step-calculator")
    box.locator('[data-part="network"]').select_option("llama3-70b")
    box.locator('[data-part="best"]').click()
    assert "does not fit" not in box.locator('[data-part="fits"]').inner_text()
    found = parse_qs(window.evaluate("location.hash").removeprefix("#layout&"))
    chosen = {key: value for key, (value,) in found.items()}

    def seconds(t: int, p: int, m: int, zero: int, recompute: str) -> float:
        """Predict a step of the batch of 64 GPUs that was chosen at first."""
        data, left = divmod(64, t * p)
        micros, rest = divmod(128, data * m) if data else (0, 1)
        if left or rest or micros not in TWOS[:8]:
            return float("inf")
        layout = Layout(data, t, p, m, micros, zero=zero, recompute=recompute)
        step = answer("llama3-70b", layout, "dgx-h100", "nanotron")
        fits = step and step["needed"] <= CLUSTERS["dgx-h100"].device.memory
        return step["seconds"] if fits else float("inf")

    numbers = [int(chosen[k]) for k in ("tensor", "pipeline", "micro_batch", "zero")]
    best = min(
        seconds(t, p, m, zero, recompute)
        for t in TWOS[:5]
        for p in TWOS[:6]
        for m in TWOS[:4]
        for zero in range(4)
        for recompute in RECOMPUTE
    )
    assert seconds(*numbers, chosen["recompute"]) == pytest.approx(best)
    box.locator('[data-part="gpus"]').select_option("1")
    box.locator('[data-part="best"]').click()
    assert "No layout" in box.locator('[data-part="searched"]').inner_text()


@pytest.mark.browser
def test_three_schedules_taken_at_random_are_drawn_as_they_were_played(window):
    rng = np.random.default_rng()
    slider = window.locator(".schedule-slider")
    for label in rng.choice(list(STORED["charts"]), 3, replace=False):
        size = str(rng.choice(list(STORED["charts"][label])))
        chart, stages = STORED["charts"][label][size], STORED["stages"][label]
        slider.locator("select").select_option(str(label))
        offered = (STORED["devices"], STORED["microBatches"])
        for part, value, values in zip(
            ("devices", "micros"), size.split(), offered, strict=True
        ):
            control = slider.locator(f'[data-part="{part}"]')
            control.fill(str(values.index(int(value))))
        facts = slider.locator('[data-part="facts"]').inner_text()
        idle, slots = re.match(
            r"([\d.]+)% idle: the last device is done after ([\d.]+) slots", facts
        ).groups()
        assert float(idle) == pytest.approx(100 * chart["idle"], abs=0.051)
        assert float(slots) == pytest.approx(chart["end"], abs=0.051)
        drawn = slider.locator("rect:is(.F, .B, .I, .W)").evaluate_all(
            "all => all.map(e => [e.className.baseVal, e.x.baseVal.value,"
            " e.width.baseVal.value])"
        )
        wide = slider.locator(".chart svg").evaluate("svg => svg.width.baseVal.value")
        boxes = [box for row in chart["rows"] for box in boxes_of(row, stages)]
        for (kind, x, width), box in zip(drawn, boxes, strict=True):
            assert kind == box.kind
            place = [chart["end"] * x / wide, chart["end"] * (x + width) / wide]
            assert place == pytest.approx([box.start, box.end], abs=0.01)


@pytest.mark.browser
def test_without_scripts_there_are_a_still_and_a_table(visit, small_book):
    two = small_book / "chapters" / "two.html"
    window = visit(two, 360, java_script_enabled=False)
    slider = window.locator(".schedule-slider")
    assert slider.locator(".chart :is(rect.F, rect.B)").count() == 4 * 8 * 2
    rows = slider.locator("tbody tr").all_inner_texts()
    for row, charts in zip(rows, STORED["charts"].values(), strict=True):
        idle = float(row.split("\t")[1].rstrip("%"))
        assert idle == pytest.approx(100 * charts["4 8"]["idle"], abs=0.051)
    box = window.locator(".step-calculator")
    layout = Layout(8, 2, 4, 1, 16, zero=1)
    step = answer("llama3-8b", layout, "dgx-h100", "nanotron")
    row = box.locator("tbody tr", has_text=re.compile("^64")).inner_text().split("\t")
    assert row[1] == f"{step['seconds']:.3g} s"
    assert row[3] == f"{step['needed'] / 1e9:.3g} GB"
    facts = box.locator('[data-part="facts"]').inner_text()
    assert f"a step takes {row[1]}" in facts
    for kind, name in zip("FIW", ("stages", "gradients", "optimizer"), strict=True):
        width = box.locator(f'[data-part="time"] rect.{kind}').get_attribute("width")
        share = 100 * step[name] / step["seconds"]
        assert float(width.rstrip("%")) == pytest.approx(share, abs=0.01)
    for controls in (slider, box):
        assert not controls.locator(".controls").is_visible()


@pytest.mark.browser
def test_an_address_leads_to_a_schedule_and_to_a_layout(window):
    address = window.url.partition("#")[0]
    window.goto(f"{address}#schedule&schedule=GPipe&devices=2&micros=16")
    window.reload()
    chart = STORED["charts"]["GPipe"]["2 16"]
    facts = window.locator('.schedule-slider [data-part="facts"]').inner_text()
    assert facts.startswith(f"{round(100 * chart['idle'], 1)}% idle")
    window.locator('.schedule-slider [data-part="devices"]').focus()
    window.keyboard.press("End")
    chosen = window.evaluate("location.hash")
    assert chosen == "#schedule&schedule=GPipe&devices=8&micros=16"
    window.goto(f"{address}#layout&gpus=128&nonsense=1&network=none")
    window.reload()
    box = window.locator(".step-calculator")
    assert box.locator('[data-part="gpus"]').input_value() == "128"
    assert box.locator('[data-part="network"]').input_value() == "llama3-8b"
