"""The Ultra-Scale Playbook's benchmark: layouts of nanotron on 8xH100 nodes (AWS P5).

Beside the time of a step: the memory, which failed runs would not have fitted, and how
good the layouts are that the model would have chosen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean, median

from d2lmulti.errors import InvalidInput

from ..layout import ImpossibleLayout, Layout
from ..networks import TRANSFORMERS
from ..presets import get_cluster
from ..step_time import Step, step_time
from .score import Compared, Report
from .table import Row

CLUSTER = "p5.48xlarge"


@dataclass(frozen=True)
class Run:
    """A row that ran: its layout, prediction and measurements."""

    compared: Compared
    cell: str  # the model and the nodes: the layouts that compete
    layout: Layout
    memory: float | None  # measured over predicted, if the row tells it
    too_big: bool


def ultrascale(rows: list[Row], report: Report) -> None:
    """Enter all rows into the report, and what they say together."""
    limit = get_cluster(CLUSTER).device.memory
    runs: list[Run] = []
    failed = Counter[str]()
    for row in rows:
        ran = has_run(row)
        with report.predicting(row):
            try:
                step, layout = _predict(row)
            except ImpossibleLayout:
                if ran:
                    raise
                failed["impossible"] += 1  # more stages than layers, say: no wonder
                continue
            if ran:
                runs.append(_run(row, step, layout, limit))
            else:
                failed["too big" if step.memory.needed > limit else "fine"] += 1
    report.rows = [run.compared for run in runs]
    other = sum(_names_another_batch(row) for row in rows)
    if other:
        report.notes.append(
            f"{other} rows name a gbs other than dp x mbs x grad_acc, which is taken"
        )
    if not runs and not failed:
        return
    report.extra |= {
        "parts": _parts(runs),
        "best_layout": _best(runs),
        "memory": _memory(runs, failed),
    }


def has_run(row: Row) -> bool:
    """Tell whether a run ended well; without a word of it, whether it has a speed."""
    if word := row.text("status").lower():
        return word in ("ok", "success", "completed")
    return bool(row.text("tok_s_gpu"))


def _predict(row: Row) -> tuple[Step, Layout]:
    name = row.text("model")
    if name not in TRANSFORMERS:
        known = ", ".join(TRANSFORMERS)
        raise InvalidInput(f"expected one of {known} as model, got {name!r}")
    layout = layout_of(row)
    return step_time(TRANSFORMERS[name], layout, get_cluster(CLUSTER)), layout


def layout_of(row: Row) -> Layout:
    """Read how a row's run was split."""
    return Layout(
        row.count("dp"), row.count("tp"), row.count("pp"), row.count("mbs"),
        row.count("grad_acc"), row.count("zero", least=0, most=3),
    )  # fmt: skip


def _names_another_batch(row: Row) -> bool:
    try:
        batch = row.count("dp") * row.count("mbs") * row.count("grad_acc")
        return bool(row.text("gbs")) and row.count("gbs") != batch
    except InvalidInput:
        return False  # which is told with the row


def _run(row: Row, step: Step, layout: Layout, limit: float) -> Run:
    measured = row.number_of("tok_s_gpu")
    words = f"{row.text('model')} {layout}"
    memory = None
    if row.text("mem_gb"):
        reserved = min(step.memory.reserved, limit) / 2**30
        memory = reserved / row.number_of("mem_gb")
    cell = f"{row.text('model')} on {layout.gpus} GPUs"
    compared = Compared(
        row.number, words, "tokens/s/GPU", measured, step.tokens_per_gpu, rate=True,
        naive=step.peak * step.tokens / step.flops,
    )  # fmt: skip
    return Run(compared, cell, layout, memory, step.memory.needed > limit)


def _parts(runs: list[Run]) -> dict[str, object]:
    """The same numbers for the rows whose physics the model knows best."""
    parts = {
        "pp = 1 and tp <= 8": [
            r for r in runs if r.layout.pipeline == 1 and r.layout.tensor <= 8
        ],
        "tp = 1": [r for r in runs if r.layout.tensor == 1],
        "pp > 1 and tp > 1": [
            r for r in runs if r.layout.pipeline > 1 and r.layout.tensor > 1
        ],
    }
    return {
        name: Report(name, [r.compared for r in some]).summary()
        for name, some in parts.items()
        if some
    }


def _best(runs: list[Run]) -> dict[str, object]:
    """The measured speed of the best-predicted layout over the best measured one."""
    cells: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.cell].append(run)
    shares = {}
    for cell, some in cells.items():
        if len(some) > 1:
            chosen = max(some, key=lambda r: r.compared.predicted)
            best = max(r.compared.measured for r in some)
            shares[cell] = chosen.compared.measured / best
    if not shares:
        return {}
    shortest = min(shares.values())
    return {"mean": mean(shares.values()), "worst": shortest, "cells": shares}


def _memory(runs: list[Run], failed: Counter[str]) -> dict[str, object]:
    ratios = [abs(r.memory - 1) for r in runs if r.memory is not None]
    found: dict[str, object] = {"ran_but_called_too_big": sum(r.too_big for r in runs)}
    if ratios:
        found["median_absolute_error_percent"] = 100 * median(ratios)
    if count := failed.total():
        flagged = failed["too big"] + failed["impossible"]
        found |= {
            "failed": count,
            "failed_called_too_big": failed["too big"],
            "failed_called_impossible": failed["impossible"],
            "failed_flagged_percent": 100 * flagged / count,
        }
    return found
