"""What pages say of other files is so: scripts, messages, sources, sizes, links."""

from __future__ import annotations

import difflib
import json
import re
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import chapter_map
import nbformat
import pytest
import reading_minutes
import setup_venv
import sizes
import yaml
from book.notebooks import ROOT
from core import core_files
from evidence_tables import small
from notebook_rules import printed
from pybtex.database import parse_file

CHAPTERS = ROOT / "chapters"
EXAMPLES = ROOT / "examples"


def notebook(chapter: str) -> Any:
    return nbformat.read(CHAPTERS / f"{chapter}.ipynb", as_version=4)


def printed_by(nb: Any) -> str:
    return "\n".join(printed(o) for c in nb.cells for o in c.get("outputs", []))


# -- the page of whole scripts ---------------------------------------------------------


def lines_of(name: str) -> list[str]:
    return (EXAMPLES / name).read_text("utf-8").splitlines()


def test_every_script_is_on_the_page_with_its_changed_lines_counted() -> None:
    page = (CHAPTERS / "scripts.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+\.py)` → `(\w+\.py)` \| (\d+) \| (\d+) \|$", page, re.M
    )
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert {name for row in rows for name in row[:2]} == scripts
    for alone, many, added, taken in rows:
        changes = difflib.unified_diff(lines_of(alone), lines_of(many), n=0)
        signs = [line[0] for line in list(changes)[2:]]
        assert (signs.count("+"), signs.count("-")) == (int(added), int(taken)), many
    for name in scripts:
        assert f"{{literalinclude}} ../examples/{name}\n" in page
        assert len(lines_of(name)) <= 90
    assert all(path.name in page for path in EXAMPLES.glob("*.sbatch"))
    assert f"A script of {len(lines_of('pytorch_single.py'))} lines" in page


def test_the_page_quotes_how_often_the_scripts_were_killed() -> None:
    page = (CHAPTERS / "scripts.md").read_text("utf-8")
    record = json.loads((CHAPTERS / "measured/evidence.json").read_text("utf-8"))
    count = ["no", "one", "two", "three", "four", "five"]
    rows = record["scripts"]["rows"]
    assert {row["machines"] for row in rows} == {2}
    (kills,) = {row["kills"] for row in rows}
    assert f"was killed {count[kills]} times on two such machines" in page
    keys = ("launchers", "ended_without_launcher")
    launchers = {row["script"]: tuple(row[key] for key in keys) for row in rows}
    several = {launchers[f"pytorch_{kind}"] for kind in ("ddp", "fsdp")}
    ((killed, clean),) = several | {launchers["paddle_parallel"]}
    words = f"{count[killed]} launchers of each script of PyTorch and Paddle"
    assert words in page and clean == 0
    killed, clean = launchers["mxnet_horovod"]
    assert f"After {count[killed]} kills of `horovodrun`, none was" in page
    assert clean == killed


# -- the failure lab -------------------------------------------------------------------


def test_the_messages_are_those_of_the_version_that_is_required() -> None:
    shown = re.search(r"^PyTorch ([\d.]+) ", printed_by(notebook("failures")), re.M)
    pin = re.search(r"^torch==([\d.]+)$", (ROOT / "requirements.txt").read_text(), re.M)
    assert shown and pin and shown[1] == pin[1], (
        "run `python tools/execute.py chapters/failures.ipynb`, read what has changed"
    )


# -- the landing page ------------------------------------------------------------------

INDEX = (CHAPTERS / "index.md").read_text(encoding="utf-8")
CARDS = {
    chapter: " ".join(text.split())
    for chapter, text in re.findall(
        r"^:::\{grid-item-card\} \{doc\}`(\w+)`\n(.*?)\n:::$", INDEX, re.M | re.S
    )
}


def test_every_notebook_has_a_card() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    notebooks = {f"chapters/{path.stem}" for path in CHAPTERS.glob("*.ipynb")}
    listed = {Path(file).stem for file in {*files} & notebooks}
    assert {*CARDS} == listed - {"backend", "read_the_library"}


@pytest.mark.parametrize("chapter", CARDS)
def test_its_numbers_stand_on_the_page(chapter: str) -> None:
    nb = notebook(chapter)
    text = "\n".join([*(cell.source for cell in nb.cells), printed_by(nb)])
    page = re.sub(r"\s+", " ", text)
    numbers = re.findall(r"\*\*(.+?)\*\*", CARDS[chapter])
    shown = [n for n in numbers if re.search(rf"(?<![\d.,]){re.escape(n)}", page)]
    assert shown == numbers != []
    minutes, exact = int(CARDS[chapter].split()[1]), reading_minutes.minutes(chapter)
    again = "run: python tools/reading_minutes.py"
    assert abs(minutes - exact) <= max(10, exact / 4), again


# -- the map ---------------------------------------------------------------------------

MAPPED = {c.name: c for c in chapter_map.chapters_of(ROOT)[1]}


def test_every_chapter_stands_once_on_the_map_below_all_that_it_names() -> None:
    notebooks = {path.stem for path in CHAPTERS.glob("*.ipynb")}
    assert {*MAPPED} == notebooks | {"scripts"}
    above: list[str] = []  # from the first row of a part to the present one's parent
    drawn = []
    for chapter, depth, others in chapter_map.rows(MAPPED):
        above[depth:] = [chapter.name]
        on_the_way = {*above[:-1], *others}
        needed = (chapter_map.all_needed(name, MAPPED) for name in on_the_way)
        assert {*chapter.needs} <= on_the_way.union(*needed), chapter.name
        drawn.append(chapter.name)
    assert sorted(drawn) == sorted(MAPPED)
    assert MAPPED["sharding"].needs == ["data_parallel", "allreduce"]
    assert [c.name for c in MAPPED.values() if c.others_too] == ["gym"]


def test_only_the_end_of_one_chapter_builds_on_a_later_one() -> None:
    for chapter in MAPPED.values():
        later = [n for n in chapter.needs if MAPPED[n].number > chapter.number]
        assert later == [], chapter.name
    ends = {c.name: c.at_the_end for c in MAPPED.values() if c.at_the_end}
    assert ends == {"large_batch": ["cost_model"]}


def test_the_routes_are_complete() -> None:
    text = (CHAPTERS / "map.md").read_text(encoding="utf-8")
    link = re.compile(r"\{doc\}`(\d+) [^`]+ <(\w+)>`")
    found = [link.findall(row) for row in text.splitlines() if row.startswith("| ")]
    for number, name in sum(found, []):
        assert MAPPED[name].number == int(number), name
    routes = [[name for _, name in row] for row in found]
    for route in filter(None, routes):
        for place, name in enumerate(route):
            before = {"setup", "devices", *route[:place]}
            assert {*MAPPED[name].needs} <= before, (route, name)
    assert sum(map(bool, routes)) > 5


# -- the library's source --------------------------------------------------------------


def test_the_readme_lists_the_core_and_counts_what_a_step_runs() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "```\n" + "\n".join(core_files()) + "\n```" in text
    told = re.search(
        r"core of\s+(\d+) files and\s+about ([\d,]+) lines.*?PyTorch\s+backend, that "
        r"is about\s+([\d,]+) lines.*?library\s+has\s+about ([\d,]+)", text, re.S
    )  # fmt: skip
    assert told
    files, *counts = (int(count.replace(",", "")) for count in told.groups())
    assert files == len(core_files())
    assert counts == pytest.approx(list(sizes.what_a_step_runs().values()), rel=0.1)


def test_the_page_reads_the_core_in_its_order() -> None:
    printed_lines = printed_by(notebook("read_the_library")).splitlines()
    rows = [line.split()[0] for line in printed_lines if " calls" in line]
    files = [f"d2lmulti/{name}" for name in rows if name.endswith(".py")]
    assert files[: len(core_files())] == core_files()


# -- references and lock files ---------------------------------------------------------

LINKS = {
    "doi": r"10\.\d{4,9}/\S+",
    "eprint": r"\d{4}\.\d{4,5}",  # arXiv's numbers since 2007
    "url": r"https://\S+",
}


def test_every_reference_has_a_link() -> None:
    for key, entry in parse_file(str(CHAPTERS / "references.bib")).entries.items():
        links = [name for name in LINKS if name in entry.fields]
        assert links, f"{key} has no doi, no eprint (arXiv) and no url"
        for name in links:
            assert re.fullmatch(LINKS[name], entry.fields[name]), f"{key}: {name}"


@pytest.mark.parametrize("kind", ["", "-torch"])
def test_a_lock_has_hashes_and_holds_what_its_requirements_ask_for(kind: str) -> None:
    lock = (ROOT / f"requirements{kind}.lock").read_text()
    torch, rest = setup_venv.split_lock(lock)
    for pin in torch + rest:
        assert re.match(r"[\w.-]+==\S+", pin) and "--hash=sha256:" in pin, pin
    assert any(pin.startswith("torch==") for pin in torch)
    assert any(pin.startswith("uv==") for pin in rest)
    assert "://" not in lock
    parts = [(ROOT / f"requirements{k}.txt").read_text() for k in ("-common", kind)]
    for pin in re.findall(r"^[\w.-]+==[\w.]+", "".join(parts), re.M):
        assert re.search(rf"^{re.escape(pin)}\b", lock, re.M), f"{pin}: run make lock"


def of_one_gpu() -> dict[str, list[str]]:
    """Return what pages quote of the record of a GPU, from the record."""
    measured = ROOT / "chapters/measured"
    record = {
        key: value
        for name in ("one_gpu_times", "one_gpu")
        for key, value in json.loads((measured / f"{name}.json").read_text()).items()
    }
    ms = lambda *where: 1e3 * reduce(getitem, where, record)[1]  # noqa: E731  median
    units, cells = (record["tests"][k] for k in ("unit tests", "cells of chapters"))
    product, used = record["product"], record["utilization"].values()
    step = record["launches"]["library, 32"]
    bits = record["last bits"]
    row = record["activations"]["1 sequences of 4096 tokens"]
    recomputed = row["recomputed"]["seconds"]
    off = max(bits["float32 gradients of LeNet"]["GPU"])
    return {
        "README.md": [
            f"all {units['passed']:,} unit tests",
            f"{cells['passed']} of {cells['passed'] + cells['failed']} cells",
        ],
        "chapters/devices.ipynb": [
            f"returned after {ms('product', 'float32', 'call returns'):.2f} ms",
            f"finished after {ms('product', 'float32', 'done'):.1f} ms",
            f"| {ms('product', 'send both inputs'):.1f} ms |",
            f"| {ms('product', 'TF32', 'done'):.1f} ms |",
            f"off by {100 * product['TF32']['error']:.2f}%",
            *(
                f"| {1e3 * product[f'fetch to {kind} memory'][1]:,.0f} ms |"
                for kind in ("pinned", "kept", "new")
            ),
            f"1 kB took {1e3 * ms('copies', 'from the GPU', '1024'):.0f} microseconds",
        ],
        "chapters/bottlenecks.ipynb": [
            *(f"| {each['percent']:.0f}% | {each['watts']:.0f} W |" for each in used),
            f"the {step['kernels']} kernels",
            f"run for {1e3 * step['kernel seconds']:.2f} ms",
            f"needs {1e3 * step['step'][1]:.1f} ms",
            f"from {ms('launches', 'PyTorch, 32'):.1f}",
            f"to {ms('launches', 'CUDA graph, 32'):.1f} ms",
            *(
                f"{ms('overlap', way):.0f} ms"
                for way in record["overlap"]
                if way != "copying alone"
            ),
        ],
        "chapters/sharding.ipynb": [
            *(
                f"| {row[way]['bytes'] / 1e6:,.0f} MB | "
                f"{1e3 * row[way]['seconds'][1]:.1f} ms |"
                for way in ("scores kept", "fused attention", "recomputed")
            ),
            f"between {1e3 * recomputed[0]:.1f} and {1e3 * recomputed[2]:.1f} ms",
        ],
        "chapters/setup.ipynb": [
            f"In {record['strategies']['runs']} runs",
            small(record["strategies"]["largest difference"]),
            f"in {bits['x / 29']} of 10,000",
            f"off by {small(off)}",
        ],
    }


@pytest.mark.parametrize(("page", "quoted"), of_one_gpu().items())
def test_what_pages_quote_of_a_gpu_was_measured(page, quoted):
    text = (ROOT / page).read_text("utf-8")
    assert [words for words in quoted if words not in text] == []
