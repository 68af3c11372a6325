"""The published tables: errors as small as promised, each formed in the right way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2lmulti import cli
from d2lmulti_cluster.comparison import Compared, Report, rank_correlation
from d2lmulti_cluster.validation import validate

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


def write_table(path, *lines):
    path.write_text("\n".join(lines))
    return path


def test_a_small_table_of_layouts(tmp_path):
    """Three rows: two that ran, one that is far too big."""
    table = write_table(
        tmp_path / "a.csv",
        "model,nodes,mbs,grad_acc,gbs,dp,pp,tp,zero,tok_s_gpu,mem_gb,status",
        "1B,1,1,4,32,8,1,1,1,39000,24,ok",
        "1B,1,1,4,32,8,1,1,0,38000,36,ok",
        "1B,1,64,4,2048,8,1,1,1,,,fail",
    )
    report = validate(table)
    assert len(report.rows) == 2 and not report.refused
    assert report.extra["memory"]["failed_called_too_big"] == 1
    assert set(report.extra["best_layout"]["cells"]) == {"1B on 8 GPUs"}
    assert report.summary()["median_absolute_error_percent"] < 25


def test_two_networks_have_a_base_each(tmp_path):
    table = write_table(
        tmp_path / "a.csv",
        "model,partitions,micro_batches,samples_per_s",
        "A baseline,0,,10", "A,2,4,15", "B,2,1,3", "B,4,8,9",
    )  # fmt: skip
    report = validate(table)
    assert [row.measured for row in report.rows] == [1.5, 3.0]
    # 2 x 4/5 of a device, 3 of 4 micro-batches computed again; the others from 3 slots.
    assert report.rows[0].predicted == pytest.approx(1.6 / 1.25)
    assert report.rows[1].predicted == pytest.approx(32 / 11 / (1 + 7 / 24) * 4 / 3)


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


def test_a_table_is_not_replaced_by_what_it_is_compared_with(tmp_path):
    text = (MEASURED / "megatron_sc21_table1.csv").read_text()
    table = write_table(tmp_path / "a.csv", text)
    assert cli.main(["validate", str(table), "--json", str(table)]) == 2
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
