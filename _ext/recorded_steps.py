"""One training step of every parallelism strategy, recorded for the page's player.

Recorded, from the library's observers and from the tensors: who computed which layer or
micro-batch and in which order, every message with its bytes, ends and the line of the
library that sent it, the bytes that each device stores, and the weights after the step.
Modeled: the clock (step_clock.py). `all_runs` checks each run against the ledger and
against one device. one_step.js plays what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from step_clock import check_clock
from step_strategies import (
    LR,
    MODEL,
    START,
    B,
    Run,
    batch,
    run_data,
    run_mesh,
    run_pipeline,
    run_tensor,
    run_zero,
)

import d2lmulti


class Strategy(NamedTuple):
    """What a reader can choose."""

    title: str
    chapter: str  # that explains it
    take: Callable[[int], Run]  # takes a step on so many devices
    devices: tuple[int, ...] = (2, 4, 8)


STRATEGIES = {
    "star": Strategy(
        "Data parallelism, star all-reduce",
        "chapters/data_parallel",
        partial(run_data, algorithm="star"),
    ),
    "ring": Strategy(
        "Data parallelism, ring all-reduce",
        "chapters/allreduce",
        partial(run_data, algorithm="ring"),
    ),
    "tensor": Strategy("Tensor parallelism", "chapters/tensor_parallel", run_tensor),
    "gpipe": Strategy(
        "Pipeline parallelism, GPipe",
        "chapters/pipeline_parallel",
        partial(run_pipeline, schedule="gpipe"),
    ),
    "1f1b": Strategy(
        "Pipeline parallelism, 1F1B",
        "chapters/pipeline_parallel",
        partial(run_pipeline, schedule="1f1b"),
    ),
    "zero3": Strategy("ZeRO 3 (FSDP)", "chapters/sharding", run_zero),
    "mesh": Strategy(
        "Mesh: data x pipeline x tensor", "chapters/composing", run_mesh, (4, 8)
    ),
}


def one_device() -> tuple[float, list[np.ndarray]]:
    """Take the same step on one device; return the loss and the weights."""
    X, y = batch()
    (device,) = d2lmulti.devices(1, "numpy")
    params = d2lmulti.get_params([B.array(p) for p in START], device)
    losses = d2lmulti.train_batch(X, y, [params], [device], LR, model=MODEL)
    return sum(float(B.numpy(x)) for x in losses), [B.numpy(p) for p in params]


def packed(run: Run, loss: float, weights: Sequence[np.ndarray]) -> dict[str, Any]:
    """Check a run against its ledger and one device; return what the page shows."""
    play, ledger = run.play, run.ledger
    sent = [0] * play.devices
    for s, _, _, _, size, *_ in play.messages:
        sent[s] += size
    counted = [ledger.sent[d] for d in range(play.devices)]
    if (len(play.messages), sent) != (ledger.messages, counted):
        raise AssertionError(f"played {sent} bytes, the ledger has {counted}")
    check_clock(play)
    difference = max(
        float(np.abs(B.numpy(p) - q).max())
        for replica in run.weights
        for p, q in zip(replica, weights, strict=True)
    )
    if not (difference < 1e-13 and abs(run.loss - loss) < 1e-10 * abs(loss)):
        raise AssertionError(f"differs from one device by {difference:.1e}")
    end = max([*(b[2] for b in play.blocks), *(m[3] for m in play.messages)])
    busy = [0.0] * play.devices
    for d, start, stop, *_ in play.blocks:
        busy[d] += stop - start
    return {
        "devices": play.devices,
        "end": round(end, 3),
        "each": play.each,
        "what": play.what,
        "lines": run.listener.lines,
        "blocks": sorted(map(rounded, play.blocks), key=lambda b: (b[1], b[0])),
        "messages": sorted(map(rounded, play.messages), key=lambda m: (m[2], m[0])),
        "memory": play.memory,
        "sent": sent,
        "idle": [round(1 - b / end, 4) for b in busy],
        "difference": float(f"{difference:.1g}"),
    }


def rounded(row: list[Any]) -> list[Any]:
    """Round the times of a row."""
    return [round(x, 3) if isinstance(x, float) else x for x in row]


@cache  # for every page that shows them, and once more to write them
def all_runs() -> dict[str, dict[str, Any]]:
    """Return every recorded run by its strategy and number of devices: `ring 4`."""
    loss, weights = one_device()
    return {
        f"{key} {k}": packed(strategy.take(k), loss, weights)
        for key, strategy in STRATEGIES.items()
        for k in strategy.devices
    }
