"""The game of the broken run shows what the library computes; anyone can play it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import record_bugs
import which_run
from bugs.bugs import BUGS
from check_pages import serious

FOUND = which_run.record()
SHOWN = {bug["bug"]: bug for bug in FOUND["bugs"]}
HERE = which_run.record(["star", "buckets"])  # what the small book shows


def test_every_bug_is_shown_as_it_is_planted_or_a_reason_is_given():
    assert {bug.name for bug in BUGS} == {*SHOWN, *FOUND["left_out"]}
    assert FOUND["left_out"] == record_bugs.left_out()
    for bug in BUGS:
        if bug.name in SHOWN:
            assert record_bugs.about(bug).items() <= SHOWN[bug.name].items()
    assert all(runs["way"] in FOUND["ways"] for runs in SHOWN.values())


def test_weights_tell_all_bugs_and_the_page_counts_right():
    higher = 0
    for bug in FOUND["bugs"]:
        correct = FOUND["ways"][bug["way"]]
        assert max(correct["difference"]) < which_run.SEEN  # 1e-10
        assert bug["difference"][-1] > -60
        assert len(correct["loss"]) == len(correct["difference"]) == 25
        assert len(bug["loss"]) == len(bug["difference"]) <= 25
        higher += sum(bug["loss"][-5:]) / 5 > sum(correct["loss"][-5:]) / 5
    page = which_run.page(None, "")
    assert f"higher final loss finds {higher} of {len(SHOWN)} bugs" in page
    data = re.search(r'<script type="application/json".*?>(.*?)</script>', page)[1]
    assert len(data.encode()) <= 60_000


def close(ours: list[int], stored: list[int]) -> None:
    assert len(ours) == len(stored)
    assert ours == pytest.approx(stored, abs=1, rel=1e-3)  # they are rounded


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_three_bugs_taken_at_random_run_as_recorded():
    shown = [bug for bug in BUGS if bug.name in SHOWN]
    for i in np.random.default_rng().choice(len(shown), 3, replace=False):
        bug = shown[i]
        correct = FOUND["ways"][bug.way]
        want = record_bugs.alone(bug.way)
        for planted, stored in ((bug, SHOWN[bug.name]), (None, correct)):
            run = record_bugs.in_copy(planted, bug.way, want)
            close(run["loss"], stored["loss"])
            close(run["accuracy"], stored["accuracy"])
            pairs = zip(run["difference"], stored["difference"], strict=True)
            for ours, theirs in pairs:  # the last bits differ from machine to machine
                both = [max(x, which_run.SEEN) for x in (ours, theirs)]
                assert both[0] == pytest.approx(both[1], abs=1, rel=1e-3)


@pytest.fixture
def page(visit, small_book):
    """A page with the game, in a narrow window."""
    page = visit(small_book / "chapters" / "two.html", 360, "#which-run-7-1")
    page.wait_for_selector('.which-run[data-ready="7 0"]')
    return page


def part(page, name):
    return page.locator(f'.which-run [data-part="{name}"]')


def verdict(page) -> tuple[bool, str]:
    """Tell whether the guess was right, and which run is broken."""
    said = part(page, "answer").inner_text()
    right, letter = re.match(r"(Right, |No: )([AB]) is broken", said).groups()
    return right == "Right, ", letter


def ended(runs: dict) -> str:
    last = runs["accuracy"][4:]
    return f"{last[0] / 10:.1f}" if last else "none"


def row_of(page, letter: str) -> list[str]:
    rows = part(page, "runs").locator("tr").all()
    return rows["AB".index(letter)].locator("td").all_inner_texts()


@pytest.mark.browser
def test_the_keyboard_plays_a_whole_game_and_the_numbers_are_the_records(page):
    seen, found = [], 0
    page.locator(".which-run").focus()
    for number in range(len(HERE["bugs"])):
        assert (
            f"Round {number + 1} of {len(HERE['bugs'])}"
            in part(page, "round").inner_text()
        )
        assert part(page, "weights").locator("svg").count() == 0
        guess = "ab"[number % 2]
        page.keyboard.press(guess)
        right, letter = verdict(page)
        assert right == (letter == guess.upper())
        found += right
        bug = SHOWN[part(page, "answer").locator("em").inner_text()]
        seen.append(bug["bug"])
        correct = FOUND["ways"][bug["way"]]
        for runs, name in ((bug, letter), (correct, "AB".replace(letter, ""))):
            shown = row_of(page, name)
            loss = sum(runs["loss"][-5:]) / len(runs["loss"][-5:]) / 1e4
            if loss < 99:
                assert float(shown[2]) == pytest.approx(loss, rel=0.01)
            assert shown[1] == ended(runs)
            assert shown[4] == which_run.power(runs["difference"][-1])
        diff = part(page, "answer").locator("pre").inner_text().strip().splitlines()
        assert diff == bug["diff"]
        assert bug["test"] in part(page, "answer").inner_text()
        page.keyboard.press("n" if number % 2 else "Enter")  # Next has the focus
    assert sorted(seen) == sorted(bug["bug"] for bug in HERE["bugs"])
    assert 0 < found < len(seen)


@pytest.mark.browser
def test_the_mouse_plays_and_the_end_tells_the_score(page):
    count, found = len(HERE["bugs"]), 0
    for number in range(count):
        part(page, "b").click()
        assert not part(page, "b").is_visible()
        right, letter = verdict(page)
        assert right == (letter == "B")
        found += right
        assert (
            part(page, "score")
            .inner_text()
            .startswith(f"You found {found} of {number + 1} bug")
        )
        if number < count - 1:
            part(page, "next").click()
    higher = which_run.facts(HERE)["higher_loss"]
    score = part(page, "score").inner_text()
    assert (
        f"higher final loss {higher}, and the weights and the tests all {count}"
        in score
    )
    assert part(page, "next").inner_text() == "Play again"
    part(page, "next").click()
    assert part(page, "score").inner_text() == ""


@pytest.mark.browser
def test_an_address_leads_to_the_same_round(page):
    part(page, "a").click()
    before = part(page, "answer").inner_text()
    part(page, "next").click()
    text = part(page, "round").inner_text()
    part(page, "link").click()
    assert page.evaluate("location.hash") == "#which-run-7-2"
    page.reload()
    page.wait_for_selector('.which-run[data-ready="7 1"]')
    assert part(page, "round").inner_text() == text
    page.evaluate("location.hash = '#which-run-7-1'")
    page.wait_for_selector('.which-run[data-ready="7 0"]')
    part(page, "a").click()
    assert part(page, "answer").inner_text() == before


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, theme):
    page.emulate_media(reduced_motion="reduce")
    page.evaluate(f"document.documentElement.dataset.theme = {json.dumps(theme)}")
    part(page, "a").click()
    style = "getComputedStyle(document.querySelector('.which-run polyline'))"
    assert page.evaluate(f"{style}.animationName") == "none"
    page.locator(".which-run details").evaluate("box => { box.open = true; }")
    assert serious(page, ".which-run") == []


@pytest.mark.browser
def test_without_scripts_there_are_two_charts_and_a_table(visit, small_book):
    page = visit(small_book / "chapters" / "two.html", java_script_enabled=False)
    assert page.locator(".which-run polyline").count() == 4
    rows = page.locator(".which-run details tbody tr")
    assert rows.count() == len(HERE["bugs"])
    assert not part(page, "game").is_visible()
