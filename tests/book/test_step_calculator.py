"""The calculator's scripts do the library's sums; its page works without a mouse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from book.conftest import NO_BROWSER
from book.notebooks import ROOT
from book.test_schedule_slider import boxes
from check_pages import FLAGS, chromium
from interactive import PROGRAMS, tables
from schedule_charts import all_charts

from d2lmulti_cluster.layout import RECOMPUTE, ImpossibleLayout, Layout
from d2lmulti_cluster.networks import TRANSFORMERS, get_network
from d2lmulti_cluster.presets import CLUSTERS, get_cluster
from d2lmulti_cluster.step_time import step_time

FOLDER = ROOT / "_extra" / "calculator"
NAMES = ("kernels", "layers", "replicas", "step_time", "pipeline")
SCRIPTS = [FOLDER / f"{name}.js" for name in NAMES]
NODE = shutil.which("node")
NO_SCRIPTS = pytest.mark.skipif(
    NODE is None and NO_BROWSER, reason="needs Node, or playwright and a Chromium"
)


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
    try:
        step = step_time(
            TRANSFORMERS[model], layout, CLUSTERS[cluster], PROGRAMS[program]
        )
    except ImpossibleLayout:
        return None
    return {
        "seconds": step.seconds,
        "stages": step.stages,
        "gradients": step.gradients,
        "optimizer": step.optimizer,
        "tokens_per_gpu": step.tokens_per_gpu,
        "utilisation": step.utilisation,
        "needed": step.memory.needed,
        "states": step.memory.states,
        "activations": step.memory.activations,
    }


def evaluate(function: str, given: Any) -> Any:
    """Call a JavaScript function beside the calculator's scripts: Node or Chromium."""
    if NODE is None:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
            page = browser.new_page()
            for script in SCRIPTS:
                page.add_script_tag(path=script)
            found = page.evaluate(function, given)
            browser.close()
            return found
    load = "".join(f"require({json.dumps(str(script))});" for script in SCRIPTS)
    read = "JSON.parse(require('fs').readFileSync(0))"
    done = subprocess.run(
        [NODE, "-e", f"{load}console.log(JSON.stringify(({function})({read})));"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


@NO_SCRIPTS
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


@NO_SCRIPTS
def test_the_chart_is_the_schedule_1f1b():
    charts = all_charts()["charts"]
    sizes = [list(map(int, size.split())) for size in charts["1F1B"]]
    found = evaluate(
        "(sizes) => sizes.map(([p, m]) =>"
        "playPipeline(Array(p).fill({ forward: 1, backward: 2 }), m))",
        sizes,
    )
    for chart, played in zip(charts["1F1B"].values(), found, strict=True):
        assert played["rows"] == [boxes(row, 1) for row in chart["rows"]]
        assert played["end"] == chart["end"]


def test_the_page_holds_the_tables_the_words_and_the_scripts(small_book):
    text = (small_book / "chapters" / "two.html").read_text(encoding="utf-8")
    figure = re.search(r'<figure[^>]*id="a-calculator".*?</figure>', text, re.S)[0]
    stored = re.search(r'<script type="application/json">(.*?)</script>', figure, re.S)
    held = json.loads(stored[1])
    assert held["data"] == json.loads(json.dumps(tables()))
    words = json.loads((FOLDER / "labels.en.json").read_text(encoding="utf-8"))
    assert held["labels"] == words
    sources = re.findall(r'src="([^"]*)"', figure)
    assert len(sources) == 6
    for source in sources:
        assert (small_book / "chapters" / source).is_file()
    one = (small_book / "chapters" / "one.html").read_text(encoding="utf-8")
    assert "calculator" not in one  # other pages do not ask for its scripts


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_the_keyboard_chooses_and_the_numbers_are_the_librarys(small_book, width):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((small_book / "chapters" / "two.html").as_uri())
        box = page.locator(".step-calculator")
        facts = box.locator('[data-part="facts"]')

        def told(layout: Layout) -> bool:
            step = step_time(get_network("llama3-8b"), layout, get_cluster("dgx-h100"))
            number = f"{float(f'{step.tokens_per_gpu:.4g}'):,.0f} tokens a second"
            return number in facts.inner_text()

        assert told(Layout(8, 2, 4, 1, 16, zero=1)), facts.inner_text()
        box.locator('[data-part="gpus"]').focus()
        page.keyboard.press("ArrowDown")  # to 128 GPUs
        assert told(Layout(16, 2, 4, 1, 16, zero=1)), facts.inner_text()
        assert box.locator("rect.F").count() > 4 * 16
        page.keyboard.press("Home")  # to one GPU
        assert "cannot be dealt out to 2 x 4" in facts.inner_text()
        assert not box.locator('[data-part="results"]').is_visible()
        for name in ("tensor", "pipeline"):
            box.locator(f'[data-part="{name}"]').focus()
            page.keyboard.press("Home")
        assert told(Layout(1, 1, 1, 1, 16, zero=1)), facts.inner_text()
        fits = box.locator('[data-part="fits"]')
        assert "does not fit" in fits.inner_text()

        text = box.inner_text()
        assert not re.search(r"undefined|NaN|Infinity|\{\w+\}", text), text
        sizes = page.evaluate(
            "[...document.querySelectorAll('.step-calculator *')]"
            ".filter((e) => e.checkVisibility() && e.textContent.trim())"
            ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 9
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        browser.close()
