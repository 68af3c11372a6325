"""The evidence page says what its record says, of all that the library has today."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

pytest.importorskip("resource", reason="faults are made by Unix's means")

from evidence import bugs, collectives, strategies
from evidence.__main__ import main
from evidence.page import SHOWN
from evidence.picture import picture
from evidence.record import ORDER, PAGE, RECORD, ROOT, TABLES, load_record, render
from evidence.release import BUSY, obstacles
from evidence.scripts import KILLS, row
from evidence.shown import speed
from evidence.sources import digest, files
from evidence.test_runs import read_report
from processes.failing import ENGINES as VICTIMS
from processes.failing import cases
from processes.launchers import LAUNCHERS

from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.process_group import ENGINES

RECORDED = load_record()
AGAIN = "make evidence ONLY={}".format


def rows(table):
    if table not in RECORDED:
        pytest.skip(f"the page says so, too: not made yet; {AGAIN(table)}")
    return RECORDED[table]["rows"]


# -- the page of the repository --------------------------------------------------------


def test_the_page_says_what_the_record_says():
    assert {"strategies", "collectives"} <= set(RECORDED) <= set(TABLES)
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == render(RECORDED), "python -m tools.evidence --render lays it out"


@pytest.mark.parametrize("table", TABLES)
def test_nothing_in_the_record_is_wrong(table):
    assert rows(table)
    assert TABLES[table].wrong(rows(table)) == []


def test_what_claims_to_be_equal_is_equal_to_twelve_digits():
    every = [r for table in ("strategies", "mesh") if table in RECORDED
             for r in rows(table)]  # fmt: skip
    double = [r for r in every if r["dtype"] == "float64" and r["ranks"]]
    assert len(double) >= len(every) / 2
    assert all(0 <= r["difference"] <= 1e-12 for r in double)


def test_every_way_to_split_of_the_library_is_tried():
    ways = set(strategies.ways())
    assert {f"data, {name}" for name in (*ALLREDUCE, "native")} <= ways
    assert {f"pipeline, {name}" for name in SCHEDULES} <= ways
    assert {*ENGINES, strategies.ONE, strategies.KVSTORE} == set(strategies.ENGINES)


def test_what_was_not_run_was_refused_in_words():
    for table in ("strategies", "mesh"):
        for r in rows(table):
            assert r["ranks"] or r["refused"], f"{r['way']} on {r['engine']}: why not?"


def test_a_strategy_that_no_way_to_split_uses_is_missed(monkeypatch):
    monkeypatch.setitem(strategies.STRATEGIES, "new", strategies.STRATEGIES["data"])
    with pytest.raises(NotImplementedError, match="new"):
        strategies.ways()


def test_every_all_reduce_of_the_library_is_among_the_collectives():
    tried = {name for name, _, _ in collectives.calls(np.ones((2, 4)), real=True)}
    assert {f"all-reduce, {a}" for a in (*ALLREDUCE, "native")} <= tried


def test_every_fault_is_there():
    happened = {(r["engine"], r["fault"]) for r in rows("faults") if "fault" in r}
    assert happened == {(e, f) for e in VICTIMS for f in cases(e)}, AGAIN("faults")
    survived = {r["engine"]: r["restarts"] for r in rows("faults") if "restarts" in r}
    kills = TABLES["faults"].KILLS
    assert survived.keys() == kills.keys()
    assert all(survived[engine] >= count for engine, count in kills.items())


def test_every_script_is_killed():
    killed = {r["script"]: r["kills"] for r in rows("scripts")}
    assert set(killed) == set(LAUNCHERS), AGAIN("scripts")
    assert min(killed.values()) >= KILLS


def not_made():
    """Return what the page says is missing on it."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    return page.partition("Not made yet, and not shown: ")[2].partition(".\n")[0]


def test_the_page_names_the_tables_that_it_lacks():
    lacks = [TABLES[name].TITLE for name in TABLES if name not in RECORDED]
    assert not_made() == "; ".join(lacks)


# -- what may be published -------------------------------------------------------------


class OneTable:
    """A table of one source file, of which no row is wrong."""

    SOURCES = ("source.py",)

    @staticmethod
    def wrong(rows):
        return [row for row in rows if row == "bad"]


@pytest.fixture
def tree(tmp_path):
    """A tree with one source file, and the record of a table made from it."""
    (tmp_path / "source.py").write_text("x = 1")
    made = {"sources": digest(OneTable.SOURCES, tmp_path), "busy_before": 0.1,
            "busy_after": 0.0}  # fmt: skip
    return tmp_path, {"one": {"made": made, "rows": ["good"]}}


def test_a_table_made_from_this_tree_on_a_quiet_machine_may_be_published(tree):
    root, record = tree
    (root / "other.py").write_text("not a source of the table")
    assert obstacles(record, {"one": OneTable}, root) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sources": "0" * 12}, "other sources"),
        ({"busy_before": BUSY + 0.1}, "cores before"),
        ({"busy_after": 2.0}, "2.00 cores after"),
        ({"busy_after": None}, "nobody measured"),
    ],
)
def test_a_table_made_in_another_way_is_refused(tree, change, words):
    root, record = tree
    record["one"]["made"] |= change
    (found,) = obstacles(record, {"one": OneTable}, root)
    assert words in found


def test_a_changed_source_a_wrong_row_and_a_missing_table_are_refused(tree):
    root, record = tree
    (root / "source.py").write_text("x = 2")
    record["one"]["rows"] = ["bad"]
    found = obstacles(record, {"one": OneTable, "two": OneTable}, root)
    assert [text.partition(":")[0] for text in found] == ["one", "one", "two"]


def test_the_check_ends_with_1_and_says_why(tmp_path, capsys):
    assert main(["--check", "--output", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert all(f"{name}: the table is missing" in printed for name in TABLES)


def test_the_hash_is_of_names_and_contents(tmp_path):
    folder = tmp_path / "folder"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "a.py").write_text("x = 1")
    first = digest(["folder"], tmp_path)
    (folder / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert digest(["folder"], tmp_path) == first
    (folder / "a.py").rename(folder / "b.py")
    second = digest(["folder"], tmp_path)
    (folder / "b.py").write_text("x = 2")
    assert len({first, second, digest(["folder"], tmp_path)}) == 3


def imported(path):
    """Yield the files of tests/ that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            for name in names:
                file = ROOT / "tests" / (name.replace(".", "/") + ".py")
                if file.exists():
                    yield file


@pytest.mark.parametrize("table", TABLES)
def test_the_sources_of_a_table_hold_what_it_imports(table):
    sources = {file for each in TABLES[table].SOURCES for file in files(ROOT / each)}
    assert ROOT / "tools" / "evidence" / f"{table}.py" in sources
    ours = [
        f for f in sources if f.suffix == ".py" and (ROOT / "d2lmulti") not in f.parents
    ]
    lacks = {str(i) for file in ours for i in imported(file)} - set(map(str, sources))
    assert not lacks


def test_every_table_is_made_and_shown():
    assert sorted(ORDER) == sorted(TABLES) == sorted(SHOWN)


# -- the picture and the words ---------------------------------------------------------


def test_the_picture_has_bugs_right_of_rounding_and_words_for_who_cannot_see_it():
    runs = [{"engine": strategies.ONE, "dtype": "float64", "ranks": [2],
             "difference": x} for x in (1e-16, 3e-15)]  # fmt: skip
    found = [{"difference": x} for x in (1e-3, 2.0, 0.0, None)]
    text = picture({"strategies": {"rows": runs}, "bugs": {"rows": found}})
    svg = ET.fromstring(text.partition("html\n")[2].partition("\n```")[0])
    assert "1.0·10⁻¹⁶ to 3.0·10⁻¹⁵" in svg.get("aria-label")
    names = [t.text for t in svg if t.tag == "text" and "(" in (t.text or "")]
    assert [re.search(r"\d+", name)[0] for name in names] == ["2", "2"]
    marks = [p.get("d") for p in svg if p.get("stroke-width")]
    places = [[float(x) for x in re.findall(r"M([\d.]+)", d)] for d in marks]
    (limit,) = {p.get("d").split()[0] for p in svg if p.get("stroke-dasharray")}
    assert max(places[0]) < float(limit[1:]) < min(places[1])
    assert "2 of the 4 planted bugs do not change" in text


@pytest.mark.parametrize(
    ("quartiles", "words"),
    [((0.8, 0.9), "faster"), ((1.1, 1.3), "slower"),
     ((0.9, 1.1), "not distinguishable")],
)  # fmt: skip
def test_a_ratio_is_judged_by_its_quartiles(quartiles, words):
    assert speed.verdict({"ratio": 1.0, "ratio_quartiles": quartiles}) == words


def test_processes_that_did_not_end_are_told_as_a_finding():
    kills = [("launcher", None), ("launcher", 2.0), ("worker", 1.0)]
    found = row(kills, script="pytorch_ddp", epochs=9, machines=2)
    text = SHOWN["scripts"].found([found])
    assert "`pytorch_ddp.py` 1 of 3" in text and "1 of 2 kills of a launcher" in text


# -- the command -----------------------------------------------------------------------

# The others run PyTorch or more, for seconds and for minutes.
QUICK = [name for name in TABLES if name not in ("bugs", "scripts", "sharded")]


@pytest.mark.slow
@pytest.mark.numpy
def test_the_command_tries_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("D2LMULTI_QUIET", "1")
    command = ["--quick", "--output", str(tmp_path), "--only"]
    assert main([*command, *QUICK]) == 0
    record = json.loads((tmp_path / RECORD).read_text(encoding="utf-8"))
    assert list(record) == QUICK
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert page == render(record)
    for name in QUICK:
        assert f"## {TABLES[name].TITLE}\n" in page
    assert f"The page with this table is {tmp_path / PAGE}" in capsys.readouterr().out

    right = strategies.trained

    def astray(way, n, backend):
        replicas = right(way, n, backend)
        replicas[-1][0].flat[0] += 1e-9
        return replicas

    monkeypatch.setattr(strategies, "trained", astray)
    assert main([*command, "strategies", "collectives"]) == 1
    printed = capsys.readouterr().out
    assert "data, ring on one process, numpy: off by" in printed
    assert "collectives:" not in printed  # the command stopped
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "data, ring on one process, numpy: off by" in page  # and does not hide it


def test_a_quick_run_never_replaces_the_page(capsys):
    with pytest.raises(SystemExit):
        main(["--quick"])
    assert "is no evidence" in capsys.readouterr().err


@pytest.mark.numpy
def test_equal_to_a_device_that_learns_nothing_means_nothing(monkeypatch):
    from d2lmulti.training import loop

    def idle(*arguments, **settings):
        return loop.train(*arguments, **{**settings, "dataset": frozen()})

    monkeypatch.setattr(strategies.d2lmulti, "train", idle)
    strategies.one_device.cache_clear()
    with pytest.raises(RuntimeError, match="equal means nothing"):
        strategies.one_device("mlp", "numpy")


@pytest.mark.numpy
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce_scatter"])
def test_a_collective_that_does_nothing_is_wrong(name, monkeypatch):
    monkeypatch.setattr(collectives.d2lmulti, name, lambda xs, *how, **options: xs)
    found = collectives.in_one_process("numpy", quick=True)
    bad = {r["collective"].partition(",")[0] for r in found if collectives.wrong([r])}
    assert bad == {name.replace("allreduce", "all-reduce").replace("_", "-")}


def frozen():
    """Images that are all black: the first layer's weights have no gradient."""
    from dataclasses import replace

    noise = strategies.data()
    return replace(noise, train_X=noise.train_X * 0)


BUG = bugs.BUGS[0]
CASE = (
    "<testsuites><testsuite><testcase name='x'>{}</testcase></testsuite></testsuites>"
)
CAUGHT = (
    "<properties><property name='bug' "
    f"""value="('{BUG.name}', ['test_one x2'])"/></properties>"""
)


def test_what_tests_record_becomes_rows():
    outcome = read_report(CASE.format(CAUGHT))
    found = [{"bug": BUG.name, "file": BUG.file, "tests": ["test_one"]}]
    assert bugs.rows_of(outcome) == found
    assert bugs.wrong(found) == []
    assert bugs.wrong([found[0] | {"tests": []}]) == [f"nobody noticed: {BUG.name}"]


@pytest.mark.parametrize("inside", ["<failure/>", "<error/>", "<skipped/>"])
def test_a_bug_that_no_test_noticed_ends_the_run(inside):
    with pytest.raises(RuntimeError, match=r"test_seeded_bugs.py: "):
        bugs.rows_of(read_report(CASE.format(CAUGHT + inside)))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("collectives", {"engine": "one process", "backend": "numpy",
                         "collective": "reduce", "calls": 9, "wrong": 1}),
        ("collectives", {"engine": "one process", "backend": "numpy",
                         "collective": "reduce", "calls": 9, "difference": 1e-9}),
        ("collectives", {"engine": "torch", "backend": "torch", "results": 9,
                         "differ": ["star sum"]}),
        ("faults", {"engine": "torch", "fault": "killed", "wrong": ["it hung"]}),
        ("scripts", {"script": "pytorch_ddp", "kills": 1}),
        ("nonsense", {"what": "bad values", "tried": 9, "refused": 8, "equal": 0}),
        ("nonsense", {"what": "bad values", "tried": 0, "refused": 0, "equal": 0}),
        ("ratios", {"candidate": "ring", "seconds": 1.0, "ratio": 0.0}),
        ("strategies", {"engine": "torch", "backend": "torch", "way": "layer",
                        "dtype": "float64", "ranks": [], "difference": None,
                        "refused": {"2": "why"}}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_seen(table, row):
    assert len(TABLES[table].wrong([row])) == 1
