"""Judge the step-time model on the Ultra-Scale Playbook's table of layouts.

    python tools/layout_scores.py ultrascale.csv

The table is not the book's to print, so the page *cost_model* shows what this command
found: the error after each piece of physics, and where it is left. It writes
`chapters/measured/layouts.json`: counts, medians and correlations, no row of the table.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from d2lmulti.observe.link import Link
from d2lmulti_cluster.comparison import rank_correlation, read_table
from d2lmulti_cluster.hardware import Cluster
from d2lmulti_cluster.layout import Layout
from d2lmulti_cluster.networks import NANOTRON, TRANSFORMERS, Software, Transformer
from d2lmulti_cluster.presets import get_cluster
from d2lmulti_cluster.step_time import step_time
from d2lmulti_cluster.transformer_tables import ULTRASCALE_CLUSTER as CLUSTER
from d2lmulti_cluster.transformer_tables import has_run, layout_of

FILE = pathlib.Path(__file__).resolve().parent.parent / "chapters/measured/layouts.json"
Seconds = Callable[[Transformer, Layout], float]
Run = tuple[Transformer, Layout, float]
FEW = 5  # layouts: with fewer an order means little


def machines() -> dict[str, Seconds]:
    """Give the model after each piece: a perfect machine that becomes real."""
    real = get_cluster(CLUSTER)
    free = Link(0.0, 1e30)
    links = replace(real, inside=free, between=free, hops=(0.0, 0.0, 0.0))
    device = replace(real.device, memory_bandwidth=1e30)
    waves = replace(links, device=device)
    tiles = replace(links, device=replace(device, units=1))
    bare = replace(
        NANOTRON, forward_bytes=(0, 0, 0), backward_bytes=(0, 0, 0),
        accumulate_bytes=0, calls=(0, 0), split_calls=(0, 0), handshakes=0,
        overlap="none", shards_wait=False,
    )  # fmt: skip
    moved = replace(
        bare, forward_bytes=NANOTRON.forward_bytes,
        backward_bytes=NANOTRON.backward_bytes,
        accumulate_bytes=NANOTRON.accumulate_bytes,
    )  # fmt: skip
    asked = replace(
        moved, calls=NANOTRON.calls, split_calls=NANOTRON.split_calls,
        handshakes=NANOTRON.handshakes,
    )  # fmt: skip
    overlapped = replace(asked, overlap=NANOTRON.overlap)

    def step(cluster: Cluster, software: Software) -> Seconds:
        return lambda model, at: step_time(model, at, cluster, software).seconds

    def peak(model: Transformer, at: Layout) -> float:
        tokens = at.batch * model.sequence
        return model.flops(tokens) / at.gpus / real.device.flops

    return {
        "operations over the peak": peak,
        "measured matmul rate, attention, bubble": step(tiles, bare),
        "whole waves of whole tiles": step(waves, bare),
        "memory traffic": step(links, moved),
        "kernel launch overhead": step(links, asked),
        "communication, no overlap": step(real, replace(asked, overlap_data=False)),
        "DP all-reduce overlapped": step(real, asked),
        "TP collectives overlapped": step(real, overlapped),
        "exposed ZeRO 1 all-gather": step(real, NANOTRON),
    }


PARTS: dict[str, Callable[[Layout], bool]] = {
    "one GPU per replica": lambda at: at.tensor == at.pipeline == 1,
    "tensor in a node": lambda at: at.pipeline == 1 < at.tensor <= 8,
    "tensor across nodes": lambda at: at.pipeline == 1 and at.tensor > 8,
    "pipeline alone": lambda at: at.tensor == 1 < at.pipeline,
    "both in one node": lambda at: at.tensor > 1 < at.pipeline and at.gpus <= 8,
    "both across nodes": lambda at: at.tensor > 1 < at.pipeline and at.gpus > 8,
}


def score(runs: list[Run], predict: Seconds) -> dict[str, Any]:
    """Compare times: median error with and without its sign, and the order."""
    said = [predict(model, at) for model, at, _ in runs]
    seen = [seconds for _, _, seconds in runs]
    errors = [100 * (a / b - 1) for a, b in zip(said, seen, strict=True)]
    return {
        "rows": len(runs),
        "median_error": round(median(errors), 1),
        "median_absolute_error": round(median(map(abs, errors)), 1),
        "rank_correlation": round(rank_correlation(said, seen) or 0, 3),
    }


def score_choice(runs: list[Run], predict: Seconds) -> dict[str, Any]:
    """Compare layouts of one model on one number of GPUs, with one batch.

    The order, and how fast the layout is that the model takes for the best: its
    measured speed over the best measured one.
    """
    cells: dict[tuple[str, int, int], list[Run]] = defaultdict(list)
    for model, at, seconds in runs:
        cells[model.name, at.gpus, at.batch].append((model, at, seconds))
    orders, shares = [], []
    for some in cells.values():
        said = [predict(model, at) for model, at, _ in some]
        seen = [seconds for _, _, seconds in some]
        order = rank_correlation(said, seen)
        if len(some) >= FEW and order is not None:
            orders.append(order)
            shares.append(min(seen) / seen[said.index(min(said))])
    return {
        "cells": len(orders),
        "rank_correlation": {
            "median": round(median(orders), 2), "lowest": round(min(orders), 2),
        },
        "chosen_over_best": {
            "median": round(median(shares), 2), "lowest": round(min(shares), 2),
        },
    }  # fmt: skip


def read(path: str) -> list[Run]:
    """Give what ran: model, layout, seconds of a step."""
    found = []
    for row in read_table(path)[1]:
        if has_run(row):
            model, at = TRANSFORMERS[row.text("model")], layout_of(row)
            tokens = at.batch * model.sequence / at.gpus
            found.append((model, at, tokens / row.number_of("tok_s_gpu")))
    return found


if __name__ == "__main__":
    runs = read(sys.argv[1])
    steps = machines()
    sane = [r for r in runs if r[1].pipeline == 1 and r[1].tensor <= 8]
    last = list(steps.values())[-1]
    told = {
        "pieces": [
            {"piece": name, "all": score(runs, step), "sane": score(sane, step)}
            for name, step in steps.items()
        ],
        "parts": {
            name: score([run for run in runs if belongs(run[1])], last)
            for name, belongs in PARTS.items()
        },
        "choice": score_choice(runs, last),
        # A second more than predicted for every micro-batch, whatever the layout.
        "stuck": sum((s - last(m, at)) / at.micro_batches > 0.5 for m, at, s in runs),
    }
    FILE.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))
