"""The race of two all-reduces computes what the library does; anyone can play it."""

import re
import shutil

import numpy as np
import pytest
import race
from book.notebooks import ROOT
from check_pages import serious

from d2lmulti.errors import PlanError
from d2lmulti.plans.rounds import Round
from d2lmulti.plans.verify import verify
from d2lmulti_cluster.clock import play
from d2lmulti_cluster.presets import get_cluster

pytestmark = pytest.mark.browser
FAULTS = ("drop", "double", "other rank")


def broken(rounds, number, fault):
    """Return a plan in which message `number` is dropped, doubled or misdirected."""
    table = list(rounds)
    i = 0
    while number >= len(table[i]):
        number -= len(table[i])
        i += 1
    this_round = table[i]
    columns = [column.copy() for column in this_round.columns]
    rows = np.arange(len(this_round))
    if fault == "drop":
        rows = np.delete(rows, number)
    elif fault == "double":
        rows = np.insert(rows, number, number)
    else:
        columns[1][number] = int(fault)
    table[i] = Round(*(column[rows] for column in columns))
    return table


def sentence(rounds, ranks, length):
    try:
        verify(rounds, ranks, length)
    except PlanError as error:
        return str(error)
    return None


def some_choice(rng):
    """Choose a plan, a cluster, a size, a message of it and a fault at random."""
    name, cluster = rng.choice(list(race.PLANS)), rng.choice(list(race.CLUSTERS))
    ranks, nbytes = int(rng.choice(race.RANKS)), int(rng.choice(race.SIZES))
    machine = get_cluster(race.CLUSTERS[cluster][0])
    rounds = list(race.bound(name, machine.per_node)(ranks, nbytes // 4))
    messages = [t for this_round in rounds for t in this_round]
    number = int(rng.integers(len(messages)))
    others = {*range(ranks)} - {messages[number].source, messages[number].target}
    fault = rng.choice(FAULTS if others else FAULTS[:2])
    if fault == "other rank":
        fault = str(rng.choice(sorted(others)))
    about = {"name": str(name), "cluster": str(cluster), "ranks": ranks}
    about |= {"bytes": nbytes, "number": number, "fault": str(fault)}
    return about, machine, rounds, broken(rounds, number, fault)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A page that holds the race and nothing else."""
    folder = tmp_path_factory.mktemp("race")
    for name in ("race", "one_step", "chart"):
        shutil.copytree(ROOT / "_extra" / name, folder / name)
    head = '<meta charset="utf-8"><title>A race</title>'
    html = f'<!doctype html><html lang="en">{head}<main><h1>A race</h1>{race.page("")}'
    (folder / "race.html").write_text(html, encoding="utf-8")
    return folder


@pytest.fixture
def page(visit, folder):
    page = visit(folder / "race.html")
    page.wait_for_selector(".race[data-ready]")
    return page


def part(page, name):
    return page.locator(f'.race [data-part="{name}"]')


def choose(page, **values):
    """Set controls as a reader does; sliders by what they say."""
    for name, value in values.items():
        control = part(page, name)
        if name in ("ranks", "size", "message", "slider"):
            place = race.SIZES.index(value) if name == "size" else value
            control.evaluate(
                "(e, value) => { e.value = value;"
                "e.dispatchEvent(new Event('input', { bubbles: true })); }",
                str(place),
            )
        else:
            control.select_option(value)


def test_the_page_carries_at_most_60_kilobytes():
    assert len(race.page("").encode()) <= 60_000


def test_clock_and_verify_are_the_librarys_on_plans_broken_at_random(page):
    rng = np.random.default_rng()
    cases = [some_choice(rng) for _ in range(200)]
    found = page.evaluate(
        """(cases) => {
          const head = document.querySelector("[data-part=head]");
          const all = JSON.parse(head.textContent);
          return cases.map(({ name, cluster, ranks, bytes, number, fault }) => {
            const machine = all.clusters[cluster];
            const key = `${name} ${ranks}` +
              (name === "hierarchical" ? ` ${machine.per_node}` : "");
            const plan = raceModel.rounds(all.plans[key], bytes / 4);
            const table = raceModel.broken(plan, number, fault);
            const end = (rounds) => raceModel.play(rounds, machine).seconds;
            const said = (rounds) => raceModel.verify(rounds, ranks, bytes / 4)?.words;
            return [end(plan), end(table), said(plan) ?? null, said(table) ?? null];
          });
        }""",
        [about for about, *_ in cases],
    )
    sentences = set()
    for (about, machine, rounds, table), answer in zip(cases, found, strict=True):
        for this_round, seconds in ((rounds, answer[0]), (table, answer[1])):
            expected = play(this_round, machine).seconds
            assert seconds == pytest.approx(expected, rel=1e-12), about
        length = about["bytes"] // 4
        assert answer[2] is None, about
        assert answer[3] == sentence(table, about["ranks"], length), about
        sentences.add(re.sub(r"[\d, ]+", "", str(answer[3])))
    assert len(sentences) >= 4  # lost, added twice, two writers, ...


def test_what_three_races_show_is_what_the_library_computes(page):
    rng = np.random.default_rng()
    for _ in range(3):
        about, machine, _, table = some_choice(rng)
        lane = str(rng.choice(list(race.LANES)))
        choose(page, cluster=about["cluster"], ranks=about["ranks"])
        choose(page, size=about["bytes"], lane=lane, **{lane: about["name"]})
        choose(page, message=about["number"] + 1, fault=about["fault"])
        seconds = float(part(page, f"{lane}-title").get_attribute("data-seconds"))
        assert seconds == pytest.approx(play(table, machine).seconds), about
        words = sentence(table, about["ranks"], about["bytes"] // 4)
        right = "right all the same. Every sum arrives, if by another way"
        result = part(page, "result").inner_text()
        assert result == f"verify: {words or right}.", about
        picture = part(page, f"{lane}-picture")
        assert picture.locator(".told:visible").count() == (words is not None)
        assert picture.locator("path.fault").count() == 1
        part(page, "summary").click()
        row = (
            part(page, "times").locator("tr").nth(list(race.PLANS).index(about["name"]))
        )
        shown = [float(x.replace(",", "")) for x in row.locator("td").all_inner_texts()]
        part(page, "summary").click()
        expected = [
            race.milliseconds(about["name"], about["ranks"], n, about["cluster"])
            for n in race.TABLE
        ]
        assert shown == pytest.approx(expected, rel=0.006), about


def test_the_cells_at_the_end_hold_everything_or_are_red(page):
    choose(page, upper="ring", lower="hierarchical", cluster="office", ranks=9)
    page.locator(".race").press("End")
    for lane in race.LANES:
        picture = part(page, f"{lane}-picture")
        assert picture.locator(".cell").count() == picture.locator(".cell.all").count()
    choose(page, lane="upper", message=144, fault="drop")  # to rank 0, part 1
    red = part(page, "upper-picture").locator(".cell.bad")
    assert red.count() == 1
    assert part(page, "lower-picture").locator(".cell.bad").count() == 0
    choose(page, fault="none")
    assert red.count() == 0


def test_a_fault_that_fewer_ranks_do_not_know_is_taken_back(page):
    choose(page, upper="ring", ranks=16, lane="upper", message=280, fault="12")
    assert part(page, "result").inner_text().startswith("verify: at the end rank")
    choose(page, ranks=8)
    assert part(page, "fault").input_value() == "none"
    assert "both plans are right" in part(page, "result").inner_text()
    assert part(page, "upper-picture").locator("path.fault").count() == 0


def test_the_crossing_is_where_both_plans_take_equally_long(page):
    says = r"the tree is faster below ([\d.]+) ([KMG])B"
    number, unit = re.search(says, part(page, "crossing").inner_text()).groups()
    size = float(number) * {"K": 1e3, "M": 1e6, "G": 1e9}[unit]
    for share, tree_wins in ((0.98, True), (1.02, False)):
        times = [
            race.milliseconds(name, 8, int(share * size), "office")
            for name in ("tree", "ring")
        ]
        assert (times[0] < times[1]) == tree_wins
    before = part(page, "curves").locator(".cross").get_attribute("cx")
    choose(page, ranks=16)
    assert part(page, "curves").locator(".cross").get_attribute("cx") != before
    choose(page, upper="ring")
    assert "both take equally long at every size" in part(page, "crossing").inner_text()


def test_keys_buttons_and_the_slider_move_through_the_race(page):
    figure, now = page.locator(".race"), part(page, "now")
    figure.press("Home")
    assert now.inner_text().startswith("At 0 of 3.41 ms. Tree: round 1 of 6")
    figure.press("ArrowRight")
    first = now.inner_text()
    assert first != "" and not first.startswith("At 0 of")
    part(page, "next").click()
    part(page, "back").click()
    assert now.inner_text() == first
    figure.press("End")
    assert "Tree: done at 3.41 ms. Ring: done at 1.82 ms." in now.inner_text()
    choose(page, slider=500)
    assert now.inner_text().startswith("At 1.71 ms of")
    figure.press(" ")
    assert part(page, "play").inner_text() == "Pause"
    page.wait_for_function(
        "Number(document.querySelector('.race [data-part=slider]').value) > 510"
    )
    figure.press(" ")
    assert part(page, "play").inner_text() == "Play"


def test_the_keyboard_alone_breaks_a_message(page):
    part(page, "lane").focus()
    for key in ("ArrowDown", "Tab", "End", "Tab", "ArrowDown"):  # the last of the ring
        page.keyboard.press(key)
    table = broken(race.bound("ring", 2)(8, 250_000), 111, "drop")
    words = sentence(table, 8, 250_000)
    assert part(page, "result").inner_text() == f"verify: {words}."


def test_a_click_on_a_line_drops_its_message(page):
    picture = part(page, "upper-picture")
    first, *_ = picture.locator("path.sent.d2").get_attribute("d")[1:].split("M")
    ends = [list(map(float, point.split())) for point in first.split("L")]
    x, y = ((a + b) / 2 for a, b in zip(*ends, strict=True))
    picture.locator("svg").click(position={"x": x, "y": y})
    assert part(page, "fault").input_value() == "drop"
    assert "adds elements 0 to 250,000 to rank 0" in part(page, "told").inner_text()
    assert "rank 2's" in part(page, "result").inner_text()


def test_with_less_motion_it_steps(page):
    page.emulate_media(reduced_motion="reduce")
    page.locator(".race").press("Home")
    part(page, "next").click()
    first = part(page, "now").inner_text()
    page.locator(".race").press("Home")
    now = "document.querySelector('.race [data-part=now]').innerText"
    play = part(page, "play")
    assert play.evaluate(f"play => {{ play.click(); return {now}; }}") == first
    page.wait_for_function(f"first => {now} !== first", arg=first)
    play.click()


def test_an_address_leads_to_a_broken_race(page, folder):
    address = (folder / "race.html").as_uri()
    choice = "upper=star&lower=ring&cluster=dgx&ranks=5&size=1000"
    page.goto(f"{address}#race&{choice}&lane=lower&message=7&fault=double&nonsense=1")
    page.reload()
    page.wait_for_selector(".race[data-ready]")
    words = sentence(broken(race.bound("ring", 8)(5, 250), 6, "double"), 5, 250)
    assert part(page, "result").inner_text() == f"verify: {words}."
    part(page, "ranks").press("ArrowRight")
    assert page.evaluate("location.hash") == (
        "#race&upper=star&lower=ring&cluster=dgx&ranks=6&size=1000"
        "&lane=lower&message=7&fault=double"
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_telephone_and_axe_finds_nothing_serious(page, theme):
    page.evaluate("theme => (document.documentElement.dataset.theme = theme)", theme)
    page.set_viewport_size({"width": 360, "height": 800})
    choose(page, upper="hierarchical", ranks=16, size=10**9)
    choose(page, lane="lower", message=300, fault="drop")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious(page, ".race") == []


def test_on_a_telephone_it_is_short_and_its_controls_fit_a_thumb(page):
    page.set_viewport_size({"width": 360, "height": 800})
    page.reload()
    page.wait_for_selector(".race[data-ready]")
    assert page.locator(".race").bounding_box()["height"] < 1450
    for control in page.locator(".race :is(button, select, summary, input)").all():
        assert control.bounding_box()["height"] >= 40
    curves = part(page, "curves").locator("svg")
    assert not curves.is_visible()
    part(page, "by-size").locator("summary").click()
    page.wait_for_function(  # the curves are drawn anew, a moment after they are seen
        """() => {
          const curves = document.querySelector(".race [data-part=curves] svg");
          const { width } = curves.getBoundingClientRect();
          return 200 < width && width <= 340;
        }"""
    )


def test_without_scripts_there_are_a_picture_and_a_table(visit, folder):
    page = visit(folder / "race.html", java_script_enabled=False)
    for lane in race.LANES:
        assert part(page, f"{lane}-picture").locator("svg path.sent").count() == 8
    part(page, "summary").click()
    row = part(page, "times").locator("tr", has_text="Ring").all_inner_texts()[0]
    assert row.split("\t")[:4] == ["Ring", "0.421", "0.434", "0.56"]
    for name in ("controls", "breaking"):
        assert not part(page, name).is_visible()
