"""The schedule slider shows what the schedules do: file, directive, script, page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from fractions import Fraction

import pytest
import schedule_charts
from book.notebooks import ROOT

from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
)
from d2lmulti.plans.schedules import SCHEDULES

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


def test_the_figures_are_those_of_the_formulas():
    for label, p, m, chart in every_chart():
        idle = {
            "naive": Fraction(p - 1, p),
            "GPipe": Fraction(p - 1, m + p - 1),
            "1F1B": Fraction(p - 1, m + p - 1),
            "interleaved": Fraction(p - 1, 2 * m + p - 1) if m % p == 0 else None,
            "zero-bubble (ZB-H1)": Fraction(p - 1, 3 * m + p - 1) if m >= p else None,
        }.get(label)
        if idle is not None:
            assert chart["idle"] == round(float(idle), 4), (label, p, m)
        held = {
            "naive": [1] * p,
            "GPipe": [m] * p,
            "1F1B": [min(m, p - s) for s in range(p)],
            "ZB-H2": [min(m, 2 * p - 1)] * p,
        }.get(label)
        if held is not None:
            assert chart["held"] == held, (label, p, m)
        if label in ("ZB-H2", "ZB-V") and m >= 2 * p - 1:
            assert chart["longest"] == 3 * m


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_the_script_reads_a_row_as_it_was_written():
    script = ROOT / "_static" / "schedule_slider.js"
    rows = [
        (row, STORED["stages"][label])
        for label, *_, chart in every_chart()
        for row in chart["rows"]
    ]
    program = (
        f"const {{ boxesOf }} = require({json.dumps(str(script))});"
        "const rows = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(rows.map(([row, n]) => boxesOf(row, n))));"
    )
    done = subprocess.run(
        ["node", "-e", program],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == [boxes(*row) for row in rows]


def test_the_page_holds_charts_and_controls_and_asks_nobody(small_book):
    page = (small_book / "chapters" / "two.html").read_text(encoding="utf-8")
    figure = re.search(r'<figure[^>]*id="a-slider".*?</figure>', page, re.DOTALL)[0]
    data = re.search(r'<script type="application/json">(.*?)</script>', figure, re.S)
    assert json.loads(data[1]) == STORED
    for label in STORED["charts"]:
        assert f">{label}</option>" in figure
    assert re.search(r"Figure 2\.1\s*</span>.*Choose a schedule", figure, re.DOTALL)
    assert "http" not in figure
    one = (small_book / "chapters" / "one.html").read_text(encoding="utf-8")
    assert "application/json" not in one  # other pages do not carry the charts


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1280])
def test_the_keyboard_chooses_and_every_label_can_be_read(small_book, width):
    from check_pages import FLAGS, chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 800})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((small_book / "chapters" / "two.html").as_uri())
        facts = page.locator('.schedule-slider [data-part="facts"]')
        assert facts.inner_text().startswith("27.3 % idle: the last device")

        page.locator('[data-part="schedule"]').focus()
        page.keyboard.press("ArrowUp")  # from 1F1B to GPipe
        assert "It holds 8 of 8 micro-batches" in facts.inner_text()
        page.keyboard.press("Tab")
        page.keyboard.press("Home")  # to two devices
        page.keyboard.press("Tab")
        page.keyboard.press("End")  # to 16 micro-batches
        chart = STORED["charts"]["GPipe"]["2 16"]
        idle = round(100 * chart["idle"], 1)
        assert facts.inner_text().startswith(f"{idle} % idle: the last device is done ")
        kinds = "rect.F, rect.B, rect.I, rect.W"
        drawn = page.locator(".schedule-slider").locator(kinds)
        assert drawn.count() == 2 * 16 * 2
        names = page.locator('.schedule-slider [data-part="names"] > div')
        assert names.all_inner_texts() == ["device 0", "device 1"]

        sizes = page.evaluate(
            "[...document.querySelectorAll('.schedule-slider *')]"
            ".filter((e) => e.checkVisibility() && e.textContent.trim())"
            ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 9
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not wrong
        browser.close()
