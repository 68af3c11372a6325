"""Published tables of transformers: Megatron's, and the Ultra-Scale Playbook's layouts.

Megatron's tables list operations per second; the time of an iteration follows from
their own count of operations (Narayanan et al., 2021, table 1, with recomputation;
Korthikanti et al., 2022, table 5; the weak scaling of Megatron-Core's README). The
layouts of nanotron on 8xH100 nodes (AWS P5) also list memory and failed runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean, median

from d2lmulti.errors import InvalidInput

from .comparison import Compared, Report, Row
from .layout import ImpossibleLayout, Layout
from .networks import (
    MEGATRON_2021,
    MEGATRON_2022,
    MEGATRON_CORE,
    TRANSFORMERS,
    Transformer,
)
from .presets import get_cluster
from .step_time import Step, step_time

# -- Megatron --------------------------------------------------------------------------

# Korthikanti et al., table 3: layers, hidden, heads, micro-batch.
KORTHIKANTI = {
    "22B": (48, 6144, 64, 4),
    "175B": (96, 12288, 96, 1),
    "530B": (105, 20480, 128, 1),
    "1T": (128, 25600, 160, 1),
}


def sc21(row: Row) -> list[Compared]:
    """Predict a row of full recomputation on A100, 8 per node."""
    model = _gpt(row, tied=True)
    data, batch = row.count("DP"), row.count("global_batch")
    size = row.count("micro_batch")
    layout = Layout(
        data, row.count("TP"), row.count("PP"), size, _micro_batches(batch, data, size),
        0, row.text("recompute") or "full", row.count_or("virtual_stages", 1), False,
    )  # fmt: skip
    step = step_time(model, layout, get_cluster("dgx-a100"), MEGATRON_2021)
    passes = 4 if layout.recompute == "full" else 3
    return [_iteration(row, model, batch, passes, step)]


def megatron_core(row: Row) -> list[Compared]:
    """Predict a row on H100, with the fastest micro-batch and chunks that fit."""
    model = _gpt(row, tied=False)
    data, tensor, pipeline = (row.count(name) for name in ("DP", "TP", "PP"))
    batch = row.count("global_batch")
    local = batch // data
    steps: list[Step] = []
    for size in (1, 2, 4, 8):
        for chunks in (1, 2, 4, 8, 16) if pipeline > 1 else (1,):
            turns = chunks == 1 or local // size % pipeline == 0
            if local % size or model.layers / pipeline % chunks or not turns:
                continue
            layout = Layout(
                data, tensor, pipeline, size, local // size, int(data > 1), "none",
                chunks, tensor > 1,
            )  # fmt: skip
            step = step_time(model, layout, get_cluster("dgx-h100"), MEGATRON_CORE)
            steps.append(step)
    fit = [s for s in steps if s.memory.needed <= 80e9] or steps
    if not fit:
        raise InvalidInput(
            f"expected a global_batch that {data} replicas divide, got {batch}"
        )
    step = min(fit, key=lambda s: s.seconds)
    return [_iteration(row, model, batch, 3, step)]


def korthikanti(row: Row) -> list[Compared]:
    """Predict two columns: full recomputation; sequence parallel and selective."""
    name = row.text("model")
    if name not in KORTHIKANTI:
        names = ", ".join(KORTHIKANTI)
        raise InvalidInput(f"expected one of {names} as model, got {name!r}")
    layers, hidden, heads, size = KORTHIKANTI[name]
    model = Transformer(
        name, layers, hidden, heads, 4 * hidden, 51200, 2048, False, True
    )
    data, batch = row.count("DP"), row.count("batch")
    compared = []
    for column, recompute, sequence in (
        ("iter_s_full_recompute", "full", False),
        ("iter_s_seqpar_plus_selective", "selective", True),
    ):
        if not row.text(column):
            continue
        layout = Layout(
            data, row.count("TP"), row.count("PP"), size,
            _micro_batches(batch, data, size), 0, recompute,
            row.count_or("interleave", 1), sequence,
        )  # fmt: skip
        step = step_time(model, layout, get_cluster("dgx-a100"), MEGATRON_2022)
        words = f"{name}, {recompute} recomputation"
        passes = 4 if recompute == "full" else 3
        naive = _operations(model, batch, passes) / step.gpus / step.peak
        measured = row.number_of(column)
        compared.append(
            Compared(row.number, words, "s", measured, step.seconds, naive=naive)
        )
    if not compared:
        raise InvalidInput("expected seconds in one of the two columns, got none")
    return compared


def _gpt(row: Row, tied: bool) -> Transformer:
    hidden = row.count("hidden")
    return Transformer(
        row.text("model"), row.count("layers"), hidden, row.count("heads"), 4 * hidden,
        row.count("vocab"), row.count("seq"), False, tied,
    )  # fmt: skip


def _micro_batches(batch: int, data: int, size: int) -> int:
    if batch % (data * size):
        raise InvalidInput(
            f"expected a batch that {data} replicas of micro-batches of {size} divide, "
            f"got {batch}"
        )
    return batch // data // size


def _iteration(
    row: Row, m: Transformer, batch: int, passes: int, step: Step
) -> Compared:
    gpus = step.gpus
    if row.text("gpus") and row.count("gpus") != gpus:
        raise InvalidInput(
            f"expected DP x TP x PP = {gpus} as gpus, got {row.text('gpus')}"
        )
    flops = _operations(m, batch, passes)
    measured = flops / gpus / (row.number_of("tflops_per_gpu") * 1e12)
    return Compared(
        row.number, f"{m.name} on {gpus} GPUs", "s", measured, step.seconds,
        naive=flops / step.gpus / step.peak,
    )  # fmt: skip


def _operations(m: Transformer, batch: int, passes: int) -> float:
    """Return the tables' count: 24 B s l h^2 (1 + s/6h) per pass, head 6 B s h V."""
    tokens = batch * m.sequence
    layers = 24 * tokens * m.layers * m.hidden**2 * (1 + m.sequence / (6 * m.hidden))
    return passes * layers + 6 * tokens * m.hidden * m.vocabulary


# -- the Ultra-Scale Playbook ----------------------------------------------------------

ULTRASCALE_CLUSTER = "p5.48xlarge"


@dataclass(frozen=True)
class Run:
    """A row that ran: its layout, prediction and measurements."""

    compared: Compared
    cell: str  # the model and the nodes: the layouts that compete
    layout: Layout
    memory: float | None  # measured over predicted, if the row has it
    too_big: bool


def ultrascale(rows: list[Row], report: Report) -> None:
    """Add all rows to the report, and their summaries."""
    limit = get_cluster(ULTRASCALE_CLUSTER).device.memory
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
                failed["impossible"] += 1  # for example, more stages than layers
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
    """Return whether a run ended well; without a status, whether it has a speed."""
    if word := row.text("status").lower():
        return word in ("ok", "success", "completed")
    return bool(row.text("tok_s_gpu"))


def _predict(row: Row) -> tuple[Step, Layout]:
    name = row.text("model")
    if name not in TRANSFORMERS:
        names = ", ".join(TRANSFORMERS)
        raise InvalidInput(f"expected one of {names} as model, got {name!r}")
    layout = layout_of(row)
    return step_time(
        TRANSFORMERS[name], layout, get_cluster(ULTRASCALE_CLUSTER)
    ), layout


def layout_of(row: Row) -> Layout:
    """Return the layout of a row's run."""
    return Layout(
        row.count("dp"), row.count("tp"), row.count("pp"), row.count("mbs"),
        row.count("grad_acc"), row.count("zero", min=0, max=3),
    )  # fmt: skip


def _names_another_batch(row: Row) -> bool:
    try:
        batch = row.count("dp") * row.count("mbs") * row.count("grad_acc")
        return bool(row.text("gbs")) and row.count("gbs") != batch
    except InvalidInput:
        return False  # which is reported with the row


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
    """Return the summaries of the parts of the table that the model covers best."""
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
        name: Report(name, [r.compared for r in part_runs]).summary()
        for name, part_runs in parts.items()
        if part_runs
    }


def _best(runs: list[Run]) -> dict[str, object]:
    """Return the measured speed of the best-predicted layout over the best."""
    cells: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        cells[run.cell].append(run)
    shares = {}
    for cell, cell_runs in cells.items():
        if len(cell_runs) > 1:
            chosen = max(cell_runs, key=lambda r: r.compared.predicted)
            best = max(r.compared.measured for r in cell_runs)
            shares[cell] = chosen.compared.measured / best
    if not shares:
        return {}
    shortest = min(shares.values())
    return {"mean": mean(shares.values()), "worst": shortest, "cells": shares}


def _memory(runs: list[Run], failed: Counter[str]) -> dict[str, object]:
    ratios = [abs(r.memory - 1) for r in runs if r.memory is not None]
    too_big = sum(run.too_big for run in runs)
    summary: dict[str, object] = {"ran_but_called_too_big": too_big}
    if ratios:
        summary["median_absolute_error_percent"] = 100 * median(ratios)
    if count := failed.total():
        flagged = failed["too big"] + failed["impossible"]
        summary |= {
            "failed": count,
            "failed_called_too_big": failed["too big"],
            "failed_called_impossible": failed["impossible"],
            "failed_flagged_percent": 100 * flagged / count,
        }
    return summary
