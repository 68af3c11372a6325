"""The evidence page shows its record, and notices what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import evidence_page
import evidence_tables
import make_evidence
import numpy as np
import pytest
from evidence import collectives, ratios, strategies
from make_evidence import RECORD, ROOT, TABLES

MADE = {"date": "2026-01-01 00:00 UTC", "version": "1", "minutes": 2.0}
MADE |= {"busy_before": 0.0, "busy_after": 0.1}


def record_with(**made):
    """Return a record of this tree's sources whose tables are the stored ones."""
    record = json.loads((ROOT / RECORD).read_text("utf-8"))
    for name, each in record.items():
        each["made"] = MADE | {"sources": make_evidence.digest(TABLES[name])} | made
    return record


def test_every_row_of_the_record_is_on_the_page():
    record = record_with()
    page = make_evidence.page(record)
    assert set(evidence_page.SHOWN) == set(TABLES)
    for name, shown in evidence_page.SHOWN.items():
        assert f"## {shown.title}\n" in page
        for row in record[name]["rows"]:
            for key in ("way", "collective", "bug", "fault", "script", "candidate"):
                assert row.get(key, "") in page
    least = min(ratios.REPEATS, ratios.BETWEEN)
    assert f"with at least {least} repetitions" in page
    assert "**Wrong results:**" not in page
    record["bugs"]["rows"][0]["tests"] = []
    page = make_evidence.page(record)
    assert "**Wrong results:**" in page


def test_only_a_wrapper_of_a_framework_counts_as_one():
    rows = json.loads((ROOT / RECORD).read_text("utf-8"))["ratios"]["rows"]
    named = [r for r in rows if ", two, " in (c := r["candidate"]) and ", to " in c]
    compared = evidence_tables.wrappers(rows)
    assert {r["part"] for r in named} == {"engines", "horovod"}
    assert compared == [r for r in named if r["part"] == "engines"] != []
    slow = {"part": "engines", "candidate": "a, to b", "ratio": 2.0}
    ends = ([1.5, 3.0], [0.5, 3.0])  # the second says neither
    found = evidence_tables.speed([slow | {"ratio_quartiles": each} for each in ends])
    assert "took 2.00 to 2.00 times" in found and "slower in one; in one" in found


def test_the_overview_counts_every_run_once():
    record = json.loads((ROOT / RECORD).read_text("utf-8"))
    for name in ("strategies", "mesh"):
        rows = record[name]["rows"]
        lines = evidence_tables.overview(rows).splitlines()[2:]
        counts = [int(line.split(" | ")[1]) for line in lines]
        double = [row for row in rows if row["dtype"] == "float64"]
        assert sum(counts) == sum(len(row["ranks"]) for row in double)
        assert len(lines) > 1


def test_what_failed_on_a_gpu_is_on_the_page():
    gpu, *times = (
        json.loads((ROOT / name).read_text("utf-8"))
        for name in make_evidence.GPU_RECORDS
    )
    said, table = evidence_page.on_one_gpu(gpu, *times, "2.13.0")
    assert "none failed" in said and gpu["machine"]["GPU"] in said
    assert "fetch to pinned memory | 72.7 ms (72.6 to 72.8) |" in table
    gpu["tests"]["unit tests"] |= {"failed": 3}
    assert "3 unit tests of the PyTorch backend failed" in next(
        evidence_page.on_one_gpu(gpu, *times, "2.13.0")
    )


def test_a_record_of_this_tree_and_a_quiet_machine_may_be_published():
    assert make_evidence.obstacles(record_with()) == []
    found = make_evidence.obstacles(record_with(busy_after=0.5))
    assert len(found) == len(TABLES) and "0.50 cores" in found[0]
    found = make_evidence.obstacles({})
    assert found == [f"{name}: the table is missing" for name in TABLES]


def test_no_table_can_change_with_a_drawing():
    program = "import make_evidence, sys; print(*sorted(sys.modules))"
    tools = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    command = [sys.executable, "-c", program]
    loaded = subprocess.check_output(command, env=os.environ | tools, text=True)
    drawn = make_evidence.DRAWINGS.replace("/", ".")
    assert "evidence.strategies" in loaded and drawn not in loaded
    assert any((ROOT / make_evidence.DRAWINGS).glob("*.py"))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("collectives", {"calls": 9, "wrong": 1}),
        ("collectives", {"calls": 9, "difference": 1e-9}),
        ("collectives", {"results": 9, "differ": ["star sum"]}),
        ("faults", {"wrong": ["it hung"]}),
        ("scripts", {"kills": 1}),
        ("nonsense", {"tried": 9, "refused": 8, "equal": 0}),
        ("nonsense", {"tried": 0, "refused": 0, "equal": 0}),
        ("ratios", {"seconds": 1.0, "ratio": 0.0}),
        ("strategies", {"ranks": [2], "dtype": "float64", "difference": 1e-9}),
        ("mesh", {"ranks": [2], "dtype": "float64", "difference": np.nan}),
        ("bugs", {"tests": []}),
    ],
)
def test_what_is_wrong_is_seen(table, row):
    assert TABLES[table].wrong(row)


@pytest.mark.numpy
def test_a_replica_that_differs_is_seen(monkeypatch):
    want = {"data, ring": strategies.one_device("lenet", "numpy")}
    (right,) = strategies.compared(2, "numpy", want).values()
    right_trained = strategies.trained

    def astray(way, n, backend):
        replicas = right_trained(way, n, backend)
        replicas[-1][0].flat[0] += 1e-9
        return replicas

    monkeypatch.setattr(strategies, "trained", astray)
    (wrong,) = strategies.compared(2, "numpy", want).values()
    assert right < strategies.LIMIT["float64"] < wrong


@pytest.mark.numpy
def test_equal_to_a_device_that_learns_nothing_means_nothing(monkeypatch):
    noise = strategies.data()
    black = replace(noise, train_X=noise.train_X * 0)
    monkeypatch.setattr(strategies, "examples", lambda: black)
    strategies.one_device.cache_clear()
    with pytest.raises(RuntimeError, match="equal means nothing"):
        strategies.one_device("mlp", "numpy")


@pytest.mark.numpy
@pytest.mark.parametrize("name", ["allreduce", "broadcast", "reduce_scatter"])
def test_a_collective_that_does_nothing_is_wrong(name, monkeypatch):
    monkeypatch.setattr(collectives.d2lmulti, name, lambda xs, *how, **options: xs)
    found = collectives.in_one_process("numpy", ranks=(3,), lengths=(0, 10))
    bad = {r["collective"].partition(",")[0] for r in found if collectives.is_no_sum(r)}
    assert bad == {name.replace("allreduce", "all-reduce").replace("_", "-")}
