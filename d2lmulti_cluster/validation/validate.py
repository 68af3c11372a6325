"""Recognise a table of measurements by its header; set the predictions beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from d2lmulti.checks import shown
from d2lmulti.errors import InvalidInput

from . import megatron, others, ultrascale
from .score import Compared, Report
from .table import Row, read_table

Reader = Callable[[list[Row], Report], None]


def _by_row(predict: Callable[[Row], list[Compared]]) -> Reader:
    def read(rows: list[Row], report: Report) -> None:
        for row in rows:
            with report.predicting(row):
                report.rows += predict(row)

    return read


class Kind(NamedTuple):
    """One kind of table: columns that it must have, and who reads it.

    "a|b" stands for one of two columns, or both.
    """

    name: str
    columns: tuple[str, ...]
    read: Reader
    never: str = ""  # a column of another kind, of which this one has all columns

    def missing(self, header: list[str]) -> list[str]:
        """Name the columns that a header lacks."""
        return [c for c in self.columns if not set(c.split("|")) & set(header)]


KINDS = (
    Kind(
        "layouts of nanotron (Ultra-Scale Playbook)",
        ("model", "mbs", "grad_acc", "dp", "pp", "tp", "zero", "tok_s_gpu"),
        ultrascale.ultrascale,
    ),
    Kind(
        "Megatron, SC 2021, table 1",
        ("hidden", "layers", "heads", "TP", "PP", "DP", "global_batch", "micro_batch",
         "seq", "vocab", "tflops_per_gpu"),
        _by_row(megatron.sc21),
    ),
    Kind(
        "Korthikanti et al., 2022, table 5",
        ("model", "TP", "PP", "DP", "batch",
         "iter_s_full_recompute|iter_s_seqpar_plus_selective"),
        _by_row(megatron.korthikanti),
    ),
    Kind(
        "Megatron-Core, weak scaling",
        ("hidden", "layers", "heads", "TP", "PP", "DP", "global_batch", "seq", "vocab",
         "tflops_per_gpu"),
        _by_row(megatron.megatron_core),
        never="recompute",
    ),
    Kind(
        "data parallelism of convolutional networks",
        ("hw", "gpus", "model", "batch_per_gpu", "images_per_s"),
        others.cnn_scaling,
    ),
    Kind("GPipe, table 2", ("model", "K", "M", "norm_throughput"), others.gpipe),
    Kind(
        "torchgpipe's benchmarks", ("model", "partitions", "samples_per_s"),
        others.torchgpipe,
    ),
    Kind(
        "collectives", ("hw", "op", "gpus", "bytes", "time_us|busbw_GBps"),
        others.collectives,
    ),
)  # fmt: skip


def validate(path: Any) -> Report:
    """Predict every row of a CSV file of measurements, and compare.

    The header tells the kind of table (see KINDS). A row that cannot be predicted is
    listed with its line number and why, and does not count. Raises `InvalidInput` for a
    file that is no table, another header, and where no row can be predicted.
    """
    header, rows = read_table(path)
    kind = _kind_of(header)
    report = Report(kind.name)
    kind.read(rows, report)
    if not report.rows and not report.extra:
        why = "there is nothing to compare; a speed-up needs two rows of one model"
        if report.refused:
            why = report.refused[0]
        raise InvalidInput(f"expected a row that can be predicted, got none; {why}")
    return report


def _kind_of(header: list[str]) -> Kind:
    for kind in KINDS:
        if not kind.missing(header) and kind.never not in header:
            return kind
    known = "".join(f"\n  {kind.name}: {', '.join(kind.columns)}" for kind in KINDS)
    near = min(
        (k for k in KINDS if k.missing(header)),
        key=lambda k: len(k.missing(header)) / len(k.columns),
    )
    lacks = near.missing(header)
    nearest = f"; {near.name}, needs {', '.join(lacks)} too"
    if len(lacks) == len(near.columns):
        nearest = ""
    raise InvalidInput(
        "expected the header of a table that is known, got "
        f"{shown(','.join(header))}{nearest}. Known are, with these columns and any "
        f"others:{known}"
    )
