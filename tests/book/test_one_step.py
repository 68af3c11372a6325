"""The player of one step shows what the library does, and can be played by anyone."""

import json
import re

import pytest
import recorded_steps as recorded
from step_strategies import BATCH, LAYERS, MICRO_BATCHES, START

RUNS = recorded.all_runs()
WEIGHTS = 8 * sum(p.size for p in START)  # bytes
EDGE = BATCH // MICRO_BATCHES * 64 * 8  # of a micro-batch's activations
SUMS = 8 * BATCH * (3 * 64 + 10 + 3 * 64)  # of activations, and of their gradients
HELD_TWICE = 8 * (3 * 64 + 10)  # biases of layers that are split by rows
# Bytes of a step on k devices, from the formulas of the chapters.
MOVED = {
    "star": lambda k: 2 * (k - 1) * WEIGHTS,
    "ring": lambda k: 2 * (k - 1) * WEIGHTS,
    # A sum of activations (or of their gradients) at every second layer: the last layer
    # has 10 outputs, and no gradient of the examples is needed.
    "tensor": lambda k: 2 * (k - 1) * SUMS,
    "gpipe": lambda k: 2 * (k - 1) * MICRO_BATCHES * EDGE,
    "1f1b": lambda k: 2 * (k - 1) * MICRO_BATCHES * EDGE,
    # Two all-gathers and a reduce-scatter; the last layer is gathered once.
    "zero3": lambda k: (k - 1) * (3 * WEIGHTS - 8 * (64 * 10 + 10)),
    # Sums of two ranks, activations to the next stage and back from both, and the sum
    # of gradients of k / 4 replicas.
    "mesh": lambda k: (
        2 * SUMS + 4 * 8 * BATCH * 64 + 2 * (k / 4 - 1) * (WEIGHTS + HELD_TWICE)
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_messages_are_those_of_the_formula(name):
    strategy, k = name.split()
    run = RUNS[name]
    assert sum(m[4] for m in run["messages"]) == MOVED[strategy](int(k))
    assert sum(run["sent"]) == MOVED[strategy](int(k))
    assert run["difference"] < 1e-13
    assert len(json.dumps(run, separators=(",", ":"))) <= 60_000


@pytest.mark.parametrize("name", RUNS)
def test_every_layer_is_computed_and_all_memory_is_given_back(name):
    run, strategy = RUNS[name], name.split()[0]
    work = {kind: sum(b[3] == kind for b in run["blocks"]) for kind in "FRBU"}
    k = run["devices"]
    once = k * (MICRO_BATCHES if run["each"] == "micro-batch" else LAYERS)
    if strategy == "mesh":  # on two stages of two ranks, a box for each layer
        once = 2 * LAYERS * MICRO_BATCHES
    again = k * (LAYERS - 1) if strategy == "zero3" else 0
    assert work == {"F": once, "R": again, "B": once, "U": k}
    for memory in run["memory"]:
        times = [time for time, _, _ in memory]
        assert times == sorted(times)
        assert memory[-1][2] == 0
    stored = sum(memory[-1][1] for memory in run["memory"])  # weights and gradients
    copies = {"star": k, "ring": k}.get(strategy, 1)
    if strategy == "tensor":  # the biases of rows are replicated
        assert 2 * WEIGHTS <= stored < 2.1 * WEIGHTS
    elif strategy == "mesh":
        assert stored == 2 * (k // 4) * (WEIGHTS + HELD_TWICE)
    else:
        assert stored == 2 * copies * WEIGHTS
    for s, t, begin, end, size, what, _, line in run["messages"]:
        assert s != t and 0 <= begin < end <= run["end"] + 0.001 and size > 0
        assert run["what"][what]
        assert re.match(r"d2lmulti/parallel/.*\.py, line \d+: \w+", run["lines"][line])


@pytest.fixture
def page(visit, small_book):
    page = visit(small_book / "chapters" / "two.html")
    page.address = page.url
    page.wait_for_selector('.one-step[data-ready="ring 4"]')
    return page


def part(page, name):
    return page.locator(f'.one-step [data-part="{name}"]')


def chosen(page, name):
    strategy, k = name.split()
    part(page, "strategy").select_option(strategy)
    part(page, "devices").select_option(k)
    page.wait_for_selector(f'.one-step[data-ready="{name}"]')


def expect_frame(page, number):
    now = "document.querySelector('.one-step [data-part=now]')"
    page.wait_for_function(f"{now}.innerText.startsWith('Moment {number} of')")


def numbers(page, column):
    return part(page, "counters").locator(f"tbody .{column}").all_inner_texts()


@pytest.mark.browser
def test_the_counters_at_the_end_are_those_of_every_run(page):
    for name, run in RUNS.items():
        chosen(page, name)
        page.locator(".one-step").press("End")
        assert re.match(r"Moment (\d+) of \1\. ", part(page, "now").inner_text())
        for text, size in zip(numbers(page, "sent"), run["sent"], strict=True):
            shown, unit = text.split()
            scale = {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
            assert float(shown) == pytest.approx(size / scale, rel=0.02, abs=0.5)
        result = part(page, "result").inner_text()
        assert f"{len(run['messages'])} messages moved" in result
        idle = round(100 * sum(run["idle"]) / run["devices"])
        assert f"idle for {idle}% of the time" in result


@pytest.mark.browser
def test_buttons_keys_and_the_slider_move_through_the_step(page):
    now = part(page, "now")
    assert ". Moment 19 of 23. 4 messages (sum of gradients" in now.inner_text()
    page.locator(".one-step").press("Home")
    assert now.inner_text().startswith("Moment 0 of 23. Before the step")
    page.locator(".one-step").press("ArrowRight")
    assert now.inner_text() == "Moment 1 of 23. Forward, layer 1 (devices 0 to 3)."
    part(page, "next").click()
    part(page, "back").click()
    assert now.inner_text().startswith("Moment 1 of 23.")
    part(page, "slider").fill("23")
    assert now.inner_text() == "Moment 23 of 23. Update (devices 0 to 3)."
    part(page, "play").focus()
    page.keyboard.press(" ")
    assert part(page, "play").inner_text() == "Pause"
    expect_frame(page, 3)
    page.locator(".one-step").press(" ")
    assert part(page, "play").inner_text() == "Play"


@pytest.mark.browser
def test_a_strategy_offers_the_devices_that_it_has(page):
    chosen(page, "ring 2")
    part(page, "strategy").select_option("mesh")
    page.wait_for_selector('.one-step[data-ready="mesh 4"]')
    assert part(page, "devices").locator("option").all_inner_texts() == [
        "4 devices",
        "8 devices",
    ]


@pytest.mark.browser
def test_with_less_motion_it_steps(page):
    page.emulate_media(reduced_motion="reduce")
    now = "document.querySelector('.one-step [data-part=now]').innerText"
    play = part(page, "play")
    said = play.evaluate(f"play => {{ play.click(); return {now}; }}")
    assert said.startswith("Moment 0 of")  # nothing moves until it is over
    expect_frame(page, 2)
    play.click()


@pytest.mark.browser
def test_a_message_shows_the_line_that_sent_it(page):
    chosen(page, "gpipe 2")
    part(page, "details").locator("summary").click()
    rows = part(page, "messages").locator("tr")
    assert rows.count() == len(RUNS["gpipe 2"]["messages"])
    rows.nth(0).locator("button").click()
    line = RUNS["gpipe 2"]["lines"][0]
    said = "Message 1: device 0 sends 4,096 bytes to device 1 (activations)."
    assert part(page, "now").inner_text() == f"{said} Sent by {line}"
    page.locator(".one-step").press("Home")
    dot = page.locator(".one-step svg path.sent").first.bounding_box()
    page.mouse.click(dot["x"] + 1, dot["y"] + dot["height"] / 2)
    assert part(page, "now").inner_text().startswith("Message 1: device 0 sends")
    assert not part(page, "chapter").is_visible()  # the small book has none


@pytest.mark.browser
def test_a_message_links_to_its_chapter(page, small_book):
    folder = small_book / "chapters"  # its chapters are none of those that are linked
    html = (folder / "two.html").read_text(encoding="utf-8")
    none = '"Pipeline parallelism, 1F1B","chapter":""'
    assert none in html
    some = none.replace('""', '"one.html"')
    (folder / "linked.html").write_text(html.replace(none, some), encoding="utf-8")
    page.goto((folder / "linked.html").as_uri())
    page.wait_for_selector(".one-step[data-ready]")
    chosen(page, "1f1b 2")
    part(page, "details").locator("summary").click()
    part(page, "messages").locator("button").first.click()
    said = r"Sent by .*: .*\. Chapter: Pipeline parallelism, 1F1B$"
    assert re.search(said, part(page, "now").inner_text())
    part(page, "now").locator("a").click()
    assert page.url == (folder / "one.html").as_uri()


@pytest.mark.browser
def test_an_address_leads_to_a_moment(page):
    page.goto(f"{page.address}#step-zero3-2-5")
    page.reload()
    page.wait_for_selector('.one-step[data-ready="zero3 2"]')
    assert part(page, "now").inner_text().startswith("Moment 5 of ")
    page.locator(".one-step").press("ArrowRight")
    part(page, "link").click()
    assert page.evaluate("location.hash") == "#step-zero3-2-6"


@pytest.mark.browser
def test_it_fits_a_telephone(page):
    page.set_viewport_size({"width": 360, "height": 800})
    for name in ("ring 8", "tensor 2"):
        chosen(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        names = page.locator(".one-step svg .name").all_text_contents()
        assert names == [str(d) for d in range(RUNS[name]["devices"])]


@pytest.mark.browser
def test_without_scripts_there_is_a_picture_and_a_table(visit, small_book):
    page = visit(small_book / "chapters" / "two.html", java_script_enabled=False)
    run = RUNS["ring 4"]
    assert page.locator(".one-step svg rect").count() == len(run["blocks"])
    rows = page.locator('.one-step [data-part="messages"] tr')
    assert rows.count() == len(run["messages"])
    assert not page.locator('.one-step [data-part="controls"]').is_visible()
