"""The evidence page says what its record says, of all that the library has today."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("resource", reason="faults are made by Unix's means")

from evidence import bugs, collectives, strategies
from evidence.__main__ import main
from evidence.record import PAGE, RECORD, ROOT, TABLES, load_record, render
from evidence.scripts import KILLS
from evidence.test_runs import read_report
from processes.failing import ENGINES as VICTIMS
from processes.failing import cases
from processes.launchers import LAUNCHERS

from d2lmulti.backends import backend_names
from d2lmulti.comm.process_group import ENGINES
from d2lmulti.plans.allreduce import ALLREDUCE

RECORDED = load_record()
BACKENDS = backend_names()  # now, before a test registers one of its own
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


def test_every_way_to_split_is_there_on_every_backend_and_engine():
    tried = {
        (r["engine"], r["backend"], r["way"]): r
        for table in ("strategies", "mesh")
        for r in RECORDED.get(table, {"rows": []})["rows"]
    }
    for way in strategies.ways():
        table = "mesh" if way.startswith("mesh") else "strategies"
        if table not in RECORDED:
            assert TABLES[table].TITLE in not_made()
            continue
        for backend in BACKENDS:
            found = tried.get((strategies.ONE, backend, way))
            assert found and found["ranks"], f"{way}, {backend}: {AGAIN(table)}"
    engines = {r["engine"] for r in tried.values() if r["ranks"]}
    assert engines == {*ENGINES, strategies.ONE, strategies.KVSTORE}
    for (engine, _, way), r in tried.items():
        assert r["ranks"] or r["refused"], f"{way} on {engine}: why not?"


def test_a_strategy_that_no_way_to_split_uses_is_missed(monkeypatch):
    monkeypatch.setitem(strategies.STRATEGIES, "new", strategies.STRATEGIES["data"])
    with pytest.raises(NotImplementedError, match="new"):
        strategies.ways()


def test_every_all_reduce_and_engine_is_among_the_collectives():
    tried = {(r["backend"], r.get("collective")) for r in rows("collectives")}
    wanted = {(b, f"all-reduce, {a}") for b in BACKENDS for a in (*ALLREDUCE, "native")}
    assert wanted <= tried, AGAIN("collectives")
    assert {*ENGINES} <= {r["engine"] for r in rows("collectives")}


def test_every_fault_is_there():
    happened = {(r["engine"], r["fault"]) for r in rows("faults") if "fault" in r}
    assert happened == {(e, f) for e in VICTIMS for f in cases(e)}, AGAIN("faults")
    assert all(r["restarts"] >= 4 for r in rows("faults") if "restarts" in r)


def test_every_script_is_killed_ten_times():
    killed = {r["script"]: r["kills"] for r in rows("scripts")}
    assert killed == dict.fromkeys(LAUNCHERS, KILLS), AGAIN("scripts")


def not_made():
    """Return what the page says is missing on it."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    return page.partition("Not made yet, and not shown: ")[2].partition(".\n")[0]


def test_the_page_names_the_tables_that_it_lacks():
    lacks = [TABLES[name].TITLE for name in TABLES if name not in RECORDED]
    assert not_made() == "; ".join(lacks)


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
    assert main([*command, "strategies"]) == 1
    assert "data, ring on one process, numpy: off by" in capsys.readouterr().out
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == page  # as it was


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
