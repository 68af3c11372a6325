"""Slider and calculator show what the library computes: in files, scripts, pages."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
import schedule_charts
from book.notebooks import ROOT
from check_pages import FLAGS, chromium
from interactive import PROGRAMS, TWOS, tables

from d2lmulti.errors import InvalidInput
from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
)
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti_cluster.layout import RECOMPUTE, ImpossibleLayout, Layout
from d2lmulti_cluster.networks import TRANSFORMERS, get_network
from d2lmulti_cluster.presets import CLUSTERS, get_cluster
from d2lmulti_cluster.step_time import step_time

# -- the schedule slider ---------------------------------------------------------------

STORED = json.loads(json.dumps(schedule_charts.all_charts()))
SLOTS = {"F": 1, "B": 2, "I": 1, "W": 1}
KINDS = {"F": Forward, "B": Backward, "I": BackwardInput, "W": BackwardWeight}


def boxes(row: str, stages: int) -> list[dict[str, object]]:
    """Read a row: kind, whether of the later stage, micro-batch, start and end."""
    now, found = 0.0, []
    for word in row.split():
        if word.startswith("-"):
            now += float(word[1:])
            continue
        kind = word[0].upper()
        end = now + SLOTS[kind] / stages
        later = word[0] != kind
        box = {"kind": kind, "later": later, "micro": word[1:], "start": now}
        found.append(box | {"end": end})
        now = end
    return found


def every_chart():
    for label, charts in STORED["charts"].items():
        for size, chart in charts.items():
            p, m = map(int, size.split())
            yield label, p, m, chart


@pytest.mark.parametrize("label", STORED["charts"])
def test_the_rows_are_the_schedule(label):
    """Every device's computations in order, and nothing begins before its input."""
    name, chunks = schedule_charts.OFFERED[label]
    for _, p, m, chart in (c for c in every_chart() if c[0] == label):
        ends: dict[tuple[str, int, int], float] = {}
        starts: list[tuple[float, list[tuple[str, int, int]]]] = []
        for d, row in enumerate(chart["rows"]):
            computed = [
                i for i in SCHEDULES[name](p, m, chunks)[d] if type(i) in KINDS.values()
            ]
            drawn = boxes(row, chunks)
            assert len(drawn) == len(computed)
            first = min(i.stage for i in computed)
            for box, i in zip(drawn, computed, strict=True):
                assert KINDS[box["kind"]] is type(i) and int(box["micro"]) == i.micro
                assert box["later"] == (i.stage > first)
                kind = {"I": "B"}.get(box["kind"], box["kind"])
                ends[kind, i.stage, i.micro] = box["end"]
                step = {"F": -1, "B": 1, "W": 0}[kind]
                before = ("B" if kind == "W" else kind, i.stage + step, i.micro)
                starts.append((box["start"], before))
        assert max(ends.values()) == chart["end"]
        for start, before in starts:
            assert ends.get(before, 0) <= start


# -- the scripts ----------------------------------------------------------------------

FOLDER = ROOT / "_extra" / "calculator"
NAMES = ("kernels", "layers", "replicas", "step_time", "pipeline")
SCRIPTS = [FOLDER / f"{name}.js" for name in NAMES]
SLIDER = ROOT / "_extra" / "chart" / "schedule_slider.js"
NODE = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
MEMORY = ("needed", "states", "activations")


@cache
def drawn() -> list[dict[str, Any]]:
    """Draw layouts and predict the step of each; None where it is no layout."""
    rng = np.random.default_rng(14)

    def some(values: Any) -> Any:
        values = list(values)
        return values[rng.integers(len(values))]

    found = []
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
        about = {"network": model, "cluster": cluster, "program": program}
        about |= {"layout": asdict(layout)}
        found.append(about | {"step": _answer(model, layout, cluster, program)})
    return found


def _answer(
    model: str, layout: Layout, cluster: str, program: str
) -> dict[str, float] | None:
    network, machines = TRANSFORMERS[model], CLUSTERS[cluster]
    try:
        step = step_time(network, layout, machines, PROGRAMS[program])
    except ImpossibleLayout:
        return None
    names = "seconds stages gradients optimizer tokens_per_gpu utilization".split()
    memory = {name: getattr(step.memory, name) for name in MEMORY}
    return {name: getattr(step, name) for name in names} | memory


def evaluate(function: str, given: Any) -> Any:
    """Call a JavaScript function with the slider's and the calculator's scripts."""
    load = "".join(f"require({json.dumps(str(script))});" for script in SCRIPTS)
    load += f"const {{ boxesOf }} = require({json.dumps(str(SLIDER))});"
    read = "JSON.parse(require('fs').readFileSync(0))"
    done = subprocess.run(
        ["node", "-e", f"{load}console.log(JSON.stringify(({function})({read})));"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


@NODE
def test_the_scripts_predict_what_the_library_does():
    data, vectors = json.loads(json.dumps(tables())), drawn()
    steps = evaluate(
        "({ data, vectors }) => { const step = stepModel(data.constants);"
        "return vectors.map((v) => step(data.networks[v.network], v.layout,"
        "data.clusters[v.cluster], data.programs[v.program])); }",
        {"data": data, "vectors": vectors},
    )
    compared = 0
    for vector, found in zip(vectors, steps, strict=True):
        if vector["step"] is None:
            assert found is None, vector
            continue
        some = {name: found[name] for name in vector["step"]}
        assert some == pytest.approx(vector["step"], rel=1e-9, abs=1e-30), vector
        compared += len(some)
    assert compared > 1800


@NODE
def test_the_chart_is_the_schedule_1f1b():
    charts = STORED["charts"]
    sizes = [list(map(int, size.split())) for size in charts["1F1B"]]
    found = evaluate(
        "(sizes) => sizes.map(([p, m]) =>"
        "playPipeline(Array(p).fill({ forward: 1, backward: 2 }), m))",
        sizes,
    )
    for chart, played in zip(charts["1F1B"].values(), found, strict=True):
        assert played["rows"] == [boxes(row, 1) for row in chart["rows"]]
        assert played["end"] == chart["end"]


@NODE
def test_the_script_reads_a_row_as_it_was_written():
    rows = [
        (row, STORED["stages"][label])
        for label, *_, chart in every_chart()
        for row in chart["rows"]
    ]
    found = evaluate("(rows) => rows.map(([row, n]) => boxesOf(row, n))", rows)
    assert found == [boxes(*row) for row in rows]


# -- the pages -------------------------------------------------------------------------


def stored_on(page: Path, name: str) -> Any:
    """Return the JSON in a figure of a page, and the figure."""
    text = page.read_text(encoding="utf-8")
    figure = re.search(rf'<figure[^>]*id="{name}".*?</figure>', text, re.DOTALL)[0]
    data = re.search(r'<script type="application/json">(.*?)</script>', figure, re.S)
    return json.loads(data[1]), figure


def test_a_page_holds_its_data_and_its_scripts_and_asks_nobody(small_book):
    page = small_book / "chapters" / "two.html"
    charts, figure = stored_on(page, "a-slider")
    assert charts == STORED
    for data in (charts, stored_on(page, "a-calculator")[0]):
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        assert len(text.encode()) <= 60_000
    assert re.search(r"Figure 2\.1\s*</span>.*Choose a schedule", figure, re.DOTALL)
    held, calculator = stored_on(page, "a-calculator")
    assert held["data"] == json.loads(json.dumps(tables()))
    sources = re.findall(r'src="([^"]*)"', calculator)
    assert len(sources) == 7
    assert all((page.parent / source).is_file() for source in sources)
    assert "http" not in figure + calculator
    one = (page.parent / "one.html").read_text(encoding="utf-8")
    assert "application/json" not in one  # other pages carry none of it
    assert "chart.js" not in one and "chart.css" not in one


@pytest.fixture
def window(small_book):
    """The page with both, in a narrow window; what goes wrong fails the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 360, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((small_book / "chapters" / "two.html").as_uri())
        yield page
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert not wrong
        browser.close()


@pytest.mark.browser
def test_the_keyboard_chooses_a_layout_and_the_numbers_are_the_librarys(window):
    box = window.locator(".step-calculator")
    facts = box.locator('[data-part="facts"]')

    def shown(layout: Layout) -> bool:
        step = step_time(get_network("llama3-8b"), layout, get_cluster("dgx-h100"))
        number = f"{float(f'{step.tokens_per_gpu:.4g}'):,.0f} tokens a second"
        return number in facts.inner_text()

    assert shown(Layout(8, 2, 4, 1, 16, zero=1)), facts.inner_text()
    box.locator('[data-part="gpus"]').focus()
    window.keyboard.press("ArrowDown")  # to 128 GPUs
    assert shown(Layout(16, 2, 4, 1, 16, zero=1)), facts.inner_text()
    window.keyboard.press("Home")  # to one GPU
    assert not box.locator('[data-part="results"]').is_visible()
    for name in ("tensor", "pipeline"):
        box.locator(f'[data-part="{name}"]').focus()
        window.keyboard.press("Home")
    assert shown(Layout(1, 1, 1, 1, 16, zero=1)), facts.inner_text()
    assert "does not fit" in box.locator('[data-part="fits"]').inner_text()
    text = box.inner_text()
    assert not re.search(r"undefined|NaN|Infinity|\{\w+\}", text), text


@pytest.mark.browser
def test_the_best_layout_is_the_fastest_that_fits(window):
    box = window.locator(".step-calculator")
    box.locator('[data-part="network"]').select_option("llama3-70b")
    box.locator('[data-part="best"]').click()
    assert "does not fit" not in box.locator('[data-part="fits"]').inner_text()
    found = parse_qs(window.evaluate("location.hash").removeprefix("#layout&"))
    chosen = {key: value for key, (value,) in found.items()}
    network, cluster = get_network("llama3-70b"), get_cluster("dgx-h100")

    def seconds(t: int, p: int, m: int, zero: int, recompute: str) -> float:
        """Predict a step of the batch of 64 GPUs that was chosen at first."""
        data, left = divmod(64, t * p)
        micros, rest = divmod(128, data * m) if data else (0, 1)
        if left or rest or micros not in TWOS[:8]:
            return float("inf")
        try:
            layout = Layout(data, t, p, m, micros, zero=zero, recompute=recompute)
            step = step_time(network, layout, cluster)
        except ImpossibleLayout:
            return float("inf")
        fits = step.memory.needed <= cluster.device.memory
        return step.seconds if fits else float("inf")

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
def test_three_schedules_taken_at_random_are_played_as_the_library_does(window):
    rng = np.random.default_rng()
    facts = window.locator('.schedule-slider [data-part="facts"]')
    set_place = (
        "(e, place) => { e.value = place;"
        "e.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    for label in rng.choice(list(schedule_charts.OFFERED), 3, replace=False):
        places = [int(rng.integers(4)), int(rng.integers(5))]
        p = schedule_charts.DEVICES[places[0]]
        m = schedule_charts.MICRO_BATCHES[places[1]]
        window.locator('[data-part="schedule"]').select_option(str(label))
        for part, place in zip(("devices", "micros"), places, strict=True):
            slider = window.locator(f'.schedule-slider [data-part="{part}"]')
            slider.evaluate(set_place, place)
        name, chunks = schedule_charts.OFFERED[str(label)]
        trace = schedule_charts.played(SCHEDULES[name](p, m, chunks), chunks)
        idle, slots = re.match(
            r"([\d.]+) % idle: the last device is done after ([\d.]+) slots",
            facts.inner_text(),
        ).groups()
        assert float(idle) == pytest.approx(100 * trace.idle_share, abs=0.051)
        assert float(slots) == pytest.approx(trace.makespan, abs=0.051)
        drawn = window.locator(".schedule-slider").locator(
            "rect.F, rect.B, rect.I, rect.W"
        )
        assert drawn.count() == len(trace.spans)


@pytest.mark.browser
def test_three_layouts_taken_at_random_are_predicted_as_the_library_does(window):
    rng = np.random.default_rng()
    box = window.locator(".step-calculator")
    text = lambda part: box.locator(f'[data-part="{part}"]').inner_text()  # noqa: E731
    compared = 0
    while compared < 3:
        chosen = {
            "network": rng.choice(list(TRANSFORMERS)),
            "cluster": rng.choice(list(CLUSTERS)),
            "program": rng.choice(list(PROGRAMS)),
            "recompute": rng.choice(RECOMPUTE),
            "zero": rng.integers(4),
            "gpus": rng.choice(TWOS[3:11]),
            "tensor": rng.choice(TWOS[:4]),
            "pipeline": rng.choice(TWOS[:4]),
            "micro_batch": rng.choice(TWOS[:4]),
            "micro_batches": rng.choice(TWOS[:8]),
        }
        for part, value in chosen.items():
            box.locator(f'[data-part="{part}"]').select_option(str(value))
        split = int(chosen["tensor"] * chosen["pipeline"])
        names = ("tensor", "pipeline", "micro_batch", "micro_batches", "zero")
        numbers = {name: int(chosen[name]) for name in names}
        layout, step = None, None
        with contextlib.suppress(InvalidInput):  # too few GPUs, heads or layers
            layout = Layout(
                int(chosen["gpus"]) // split,
                recompute=str(chosen["recompute"]),
                **numbers,
            )
            step = step_time(
                TRANSFORMERS[chosen["network"]],
                layout,
                CLUSTERS[chosen["cluster"]],
                PROGRAMS[chosen["program"]],
            )
        assert box.locator('[data-part="results"]').is_visible() == (step is not None)
        if step is None:
            continue
        found = re.search(
            r"a step takes ([\d.,]+) (ms|s): data (\d+) .* ([\d,.]+) tokens a second",
            text("facts"),
        )
        seconds, tokens = (float(found[i].replace(",", "")) for i in (1, 4))
        scale = {"s": 1, "ms": 1e-3}[found[2]]
        assert scale * seconds == pytest.approx(step.seconds, rel=0.006), chosen
        assert tokens == pytest.approx(step.tokens_per_gpu, rel=0.006), chosen
        assert int(found[3]) == layout.data
        memory = float(re.search(r"needs ([\d.,]+)", text("fits"))[1].replace(",", ""))
        assert memory == pytest.approx(step.memory.needed / 1e9, rel=0.006), chosen
        fits = step.memory.needed <= CLUSTERS[chosen["cluster"]].device.memory
        assert ("does not fit" in text("fits")) != fits
        compared += 1


@pytest.mark.browser
def test_without_scripts_there_are_a_still_and_a_table(small_book):
    from playwright.sync_api import sync_playwright

    page = small_book / "chapters" / "two.html"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        context = browser.new_context(
            java_script_enabled=False, viewport={"width": 360, "height": 900}
        )
        window = context.new_page()
        window.goto(page.as_uri())
        slider = window.locator(".schedule-slider")
        assert slider.locator(".chart :is(rect.F, rect.B)").count() == 4 * 8 * 2
        rows = slider.locator("tbody tr").all_inner_texts()
        assert len(rows) == len(STORED["charts"])
        for row, charts in zip(rows, STORED["charts"].values(), strict=True):
            idle = 100 * charts["4 8"]["idle"]
            assert float(row.split("\t")[1].split()[0]) == pytest.approx(
                idle, abs=0.051
            )
        box = window.locator(".step-calculator")
        step = step_time(
            get_network("llama3-8b"),
            Layout(8, 2, 4, 1, 16, zero=1),
            get_cluster("dgx-h100"),
        )
        row = (
            box.locator("tbody tr", has_text=re.compile("^64")).inner_text().split("\t")
        )
        assert row[1] == f"{step.seconds:.3g} s"
        assert row[3] == f"{step.memory.needed / 1e9:.3g} GB"
        assert (
            f"a step takes {row[1]}" in box.locator('[data-part="facts"]').inner_text()
        )
        widths = [
            box.locator(f'[data-part="time"] rect.{kind}').bounding_box()["width"]
            for kind in "FIW"
        ]
        times = [step.stages, step.gradients, step.optimizer]
        for width, seconds in zip(widths, times, strict=True):
            share = seconds / step.seconds
            assert width / sum(widths) == pytest.approx(share, abs=0.005)
        for controls in (slider, box):
            assert not controls.locator(".controls").is_visible()
        browser.close()


@pytest.mark.browser
def test_an_address_leads_to_a_schedule_and_to_a_layout(window):
    address = window.url.partition("#")[0]
    window.goto(f"{address}#schedule&schedule=GPipe&devices=2&micros=16")
    window.reload()
    chart = STORED["charts"]["GPipe"]["2 16"]
    facts = window.locator('.schedule-slider [data-part="facts"]').inner_text()
    assert facts.startswith(f"{round(100 * chart['idle'], 1)} % idle")
    window.locator('.schedule-slider [data-part="devices"]').focus()
    window.keyboard.press("End")
    chosen = window.evaluate("location.hash")
    assert chosen == "#schedule&schedule=GPipe&devices=8&micros=16"
    window.goto(f"{address}#layout&gpus=128&nonsense=1&network=none")
    window.reload()
    box = window.locator(".step-calculator")
    assert box.locator('[data-part="gpus"]').input_value() == "128"
    assert box.locator('[data-part="network"]').input_value() == "llama3-8b"
