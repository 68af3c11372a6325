"""The published tables: errors as small as promised, and rows that are wrong."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from d2lmulti import cli
from d2lmulti.errors import InvalidInput
from d2lmulti_cluster.comparison import Compared, Report, rank_correlation
from d2lmulti_cluster.validation import KINDS, validate

MEASURED = Path(__file__).parents[2] / "chapters" / "measured"
# file -> median and largest error of the time, per cent; None: none is promised.
PROMISED = {
    "megatron_sc21_table1": (3, 8),
    "korthikanti_table5_a100": (6, 12),
    "megatron_core_h100": (10, 15),
    "collectives_measured": (20, 45),
    "gpipe_tables_2_3": (15, None),
    "torchgpipe_p40_speed": (15, None),
    "cnn_dp_scaling": (15, 15),
}


@pytest.mark.parametrize("name", PROMISED)
def test_errors_are_as_small_as_promised(name):
    report = validate(MEASURED / f"{name}.csv")
    assert not report.refused
    found = report.summary()
    most, largest = PROMISED[name]
    assert found["median_absolute_error_percent"] <= most
    assert largest is None or found["largest_absolute_error_percent"] <= largest
    assert found["rank_correlation"] >= 0.95


def rewritten(path, name, change, **how):
    """A measured table whose lines, header first, went through `change`."""
    with (MEASURED / f"{name}.csv").open(newline="") as file:
        lines = change(list(csv.reader(file)))
    encoding = how.pop("encoding", "utf-8")
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, **how).writerows(lines)
    return path


def without(column):
    """Leave a column out."""

    def change(lines):
        at = lines[0].index(column)
        return [line[:at] + line[at + 1 :] for line in lines]

    return change


def test_a_table_is_not_taken_for_another_kind(tmp_path):
    change = without("micro_batch")
    file = rewritten(tmp_path / "a.csv", "megatron_sc21_table1", change)
    with pytest.raises(InvalidInput, match="SC 2021, table 1, needs micro_batch too"):
        validate(file)
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput) as caught:
        validate(file)
    assert all(f"{kind.name}: {kind.columns[0]}" in str(caught.value) for kind in KINDS)


def test_bandwidths_tell_the_error_of_the_time_too():
    found = validate(MEASURED / "collectives_measured.csv")
    row = found.rows[0]
    assert row.unit == "GB/s" and row.error == row.predicted / row.measured - 1
    assert (1 + row.error) * (1 + row.error_of_time) == pytest.approx(1)
    assert found.rows[-1].error == found.rows[-1].error_of_time
    told = found.as_json()
    assert told["rows"][0]["error_of_time_percent"] == 100 * row.error_of_time
    largest = max(abs(r.error_of_time) for r in found.rows)
    told = told["summary"]["largest_absolute_error_of_time_percent"]
    assert told == pytest.approx(100 * largest)


def test_every_kind_of_table_is_recognised_by_its_own_header():
    kinds = {validate(MEASURED / f"{name}.csv").kind for name in PROMISED}
    assert len(kinds) == len(PROMISED) == len(KINDS) - 1


def test_layouts_when_their_table_is_at_hand():
    folder = os.environ.get("D2LMULTI_MEASUREMENTS")
    file = Path(folder or ".") / "ultrascale_1b_3b.csv"
    if not folder or not file.exists():
        pytest.skip("D2LMULTI_MEASUREMENTS names no folder with the table")
    report = validate(file)
    assert report.summary()["median_absolute_error_percent"] <= 30
    assert report.extra["best_layout"]["mean"] >= 0.95
    assert report.extra["best_layout"]["worst"] >= 0.85
    part = report.extra["parts"]["pp = 1 and tp <= 8"]
    assert part["median_absolute_error_percent"] <= 20
    assert part["rank_correlation"] >= 0.97
    memory = report.extra["memory"]
    assert memory["median_absolute_error_percent"] <= 10
    assert memory["ran_but_called_too_big"] == 0
    assert memory["failed_flagged_percent"] >= 60


def small_layouts(path, **changes):
    """A table of layouts of three rows: two that ran, one that is far too big."""
    base = {"model": "1B", "nodes": 1, "mbs": 1, "grad_acc": 4, "gbs": 32, "dp": 8,
            "pp": 1, "tp": 1, "zero": 1, "tok_s_gpu": 39000, "mem_gb": 24,
            "status": "ok"}  # fmt: skip
    rows = [base, {**base, "zero": 0, "tok_s_gpu": 38000, "mem_gb": 36}]
    rows.append({**base, "mbs": 64, "gbs": 2048, "tok_s_gpu": "", "mem_gb": "",
                 "status": "fail"})  # fmt: skip
    rows[1] |= changes
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, base)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_small_table_of_layouts(tmp_path):
    report = validate(small_layouts(tmp_path / "a.csv"))
    assert len(report.rows) == 2 and not report.refused
    assert report.extra["memory"]["failed_called_too_big"] == 1
    assert set(report.extra["best_layout"]["cells"]) == {"1B on 8 GPUs"}
    assert report.summary()["median_absolute_error_percent"] < 25


@pytest.mark.parametrize(
    ("column", "value", "words"),
    (
        ("model", "9B", "as model, got '9B'"),
        ("tp", "3", "divides 32 heads"),
        ("pp", "64", "at most one stage"),
        ("tok_s_gpu", "nan", "as tok_s_gpu, got 'nan'"),
    ),
)
def test_a_wrong_row_is_named_and_the_others_count(tmp_path, column, value, words):
    report = validate(small_layouts(tmp_path / "a.csv", **{column: value}))
    assert len(report.rows) == 1
    (told,) = report.refused
    assert told.startswith("row 3: ") and words in told and "\n" not in told


def test_two_networks_have_a_base_each(tmp_path):
    file = tmp_path / "a.csv"
    rows = ["A baseline,0,,10", "A,2,4,15", "B,2,1,3", "B,4,8,9"]
    lines = ["model,partitions,micro_batches,samples_per_s", *rows]
    file.write_text("\n".join(lines))
    report = validate(file)
    assert [row.measured for row in report.rows] == [1.5, 3.0]
    # 2 x 4/5 of a device, 3 of 4 micro-batches computed again; the others from 3 slots.
    assert report.rows[0].predicted == pytest.approx(1.6 / 1.25)
    assert report.rows[1].predicted == pytest.approx(32 / 11 / (1 + 7 / 24) * 4 / 3)


def test_another_gpu_is_named(tmp_path):
    text = (MEASURED / "collectives_measured.csv").read_text()
    file = tmp_path / "a.csv"
    file.write_text(text.replace("2x2080Ti NVLink bridge", "2xVoodoo"))
    report = validate(file)
    assert len(report.refused) == 3 and "got '2xVoodoo" in report.refused[0]
    file.write_text(text.replace("8xH100", "8xA100").replace("2x2080Ti", "2x3090"))
    assert not validate(file).refused


@pytest.mark.parametrize(
    ("text", "words"),
    (
        ("", "a header and at least one row"),
        ("a,b\n1,2\n", "the header of a table that is known, got 'a,b'"),
        ("K,M,model,K,norm_throughput\n1,1,a,1,1\n", "every column once"),
        ("model,K,M,norm_throughput\na,2,1,1,7,8\n", "row 2: expected at most 4 cells"),
        ("model,K,M,norm_throughput\na,2,1,1\n", "there is nothing to compare"),
    ),
)
def test_what_is_no_table_is_refused(tmp_path, text, words):
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=words.replace("(", r"\(")):
        validate(file)


def test_speedups_and_times_have_errors_of_their_own():
    """A right speed-up over wrong images a second is not a right time."""
    report = validate(MEASURED / "cnn_dp_scaling.csv")
    assert all(row.speedup for row in report.rows)
    assert len(report.absolute) == len(report.rows) + 2  # a base for each network
    first, found = report.absolute[0], report.summary()
    assert (first.measured, round(first.predicted, 1)) == (30.4, 71.1)
    assert first.error_of_time == pytest.approx(30.4 / first.predicted - 1)
    assert found["errors_of"] == "speed-ups"
    assert found["largest_absolute_error_percent"] < 15
    assert found["median_absolute_error_of_time_percent"] > 40
    told = report.as_json()
    assert len(told["absolute_rows"]) == 18
    for name in ("gpipe_tables_2_3", "torchgpipe_p40_speed"):  # no times in the table
        report = validate(MEASURED / f"{name}.csv")
        assert report.summary()["errors_of"] == "speed-ups" and not report.absolute
    report = validate(MEASURED / "megatron_sc21_table1.csv")
    assert report.summary()["errors_of"] == "times"


def test_the_naive_model_orders_runs_too():
    """Operations over the peak: far off in seconds, and in the same order."""
    found = validate(MEASURED / "megatron_sc21_table1.csv").summary()
    assert found["naive_rank_correlation"] == found["rank_correlation"] == 1
    assert 50 < found["naive_median_absolute_error_percent"] < 60
    row = validate(MEASURED / "torchgpipe_p40_speed.csv").rows[-1]
    assert row.naive == 8 > row.predicted > row.measured


def test_errors_of_rates_are_those_of_times():
    assert Compared(2, "", "s", 2.0, 3.0).error == pytest.approx(0.5)
    assert Compared(2, "", "images/s", 2.0, 4.0, rate=True).error == pytest.approx(-0.5)
    rows = [Compared(2, "", "s", 2.0, t) for t in (1.0, 2.0, 6.0)]
    found = Report("a", rows).summary()
    assert found["median_absolute_error_percent"] == pytest.approx(50)
    assert found["largest_absolute_error_percent"] == pytest.approx(200)


def test_ranks_share_their_place():
    assert rank_correlation([1, 1, 2], [5, 5, 9]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1], [1]) is None
    assert rank_correlation([1, 1], [1, 2]) is None


def test_a_table_is_not_replaced_by_what_it_is_compared_with(tmp_path, capsys):
    table = tmp_path / "a.csv"
    text = (MEASURED / "megatron_sc21_table1.csv").read_text()
    table.write_text(text)
    assert cli.main(["validate", str(table), "--json", str(table)]) == 2
    assert "another file than the table" in capsys.readouterr().err
    assert table.read_text() == text


def test_the_commands_print_and_write(tmp_path, capsys):
    file = tmp_path / "a.json"
    table = str(MEASURED / "megatron_sc21_table1.csv")
    assert cli.main(["validate", table, "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told["summary"]["rows"] == 5 and len(told["rows"]) == 5
    assert cli.main(["simulate", "--ranks", "16", "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert told["ranks"] == 16 and told["nbytes"] == 10**8
    options = ["--model", "1B", "--cluster", "dgx-h100", "--gpus", "8"]
    assert cli.main(["plan", *options, "--json", str(file)]) == 0
    told = json.loads(file.read_text())
    assert any(c["fits"] for c in told["layouts"])
    assert not all(c["fits"] for c in told["layouts"])
    table = str(MEASURED / "cnn_dp_scaling.csv")
    assert cli.main(["validate", table]) == 0
    printed = capsys.readouterr().out
    assert "71.12   -57.3%  images/s, inception-v3 on 1 GPUs" in printed
    for words in ("median absolute error percent", "busbw", "do not fit in 80 GB"):
        assert words in printed
