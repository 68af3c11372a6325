"""A pipeline of 4 processes on the wall clock, beside what its trace says.

Stages sleep instead of computing, so that the number of cores does not matter. It says
times and asserts none; the last column is what the trace says.

D2LMULTI_SLOT=0.02 pytest -s tests/processes/test_pipeline_wall_clock.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from d2lmulti.backends import get_backend
from d2lmulti.comm.devices import devices
from d2lmulti.models.model import Layer, Model
from d2lmulti.observe.pipeline_trace import pipeline_trace
from d2lmulti.parallel.pipeline import cut_stages, place_params, train_stages
from d2lmulti.plans.pipeline import stage_ranks
from d2lmulti.plans.schedules import SCHEDULES
from d2lmulti.processes.launcher import launch
from d2lmulti.processes.process_group import started

SLOT = float(os.environ.get("D2LMULTI_SLOT", "0"))  # seconds
RANKS, MICRO, STEPS = 4, 16, 5
RUNS = [
    ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zb_h2", 1),
    ("zb_v", 2),
]  # fmt: skip


def sleeping(stages: int, slot: float, halves: bool) -> Model:
    """Make layers that take 1 slot forward, and 2 on the way back, or 1 for a half."""
    import torch

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            time.sleep(slot)
            return x * 1

        @staticmethod
        def backward(ctx: Any, dx: Any) -> Any:
            time.sleep(slot * (1 if halves else 2))
            return dx

    def forward(B: Any, params: Sequence[Any], X: Any) -> Any:
        return Sleep.apply(X * params[0])

    layers = tuple(Layer(f"sleep {s}", 1, forward) for s in range(stages))
    return Model("sleeping", lambda rng: [], forward, forward, layers=layers)


def measure(schedule: str, v: int, slot: float) -> tuple[list[float], list[float], Any]:
    """Take some steps; give when each begins and ends, and the trace's end."""
    B, group = get_backend(), started()
    lists = SCHEDULES[schedule](RANKS, MICRO, v)
    stages = cut_stages(sleeping(RANKS * v, slot, schedule.startswith("z")), RANKS * v)
    ones = [B.array(np.ones(3)) for _ in stages]
    places = devices(RANKS)
    params = place_params(ones, stages, places, stage_ranks(lists))
    X, y = B.array(np.ones((MICRO, 3))), B.array(np.zeros(MICRO, np.int64))
    begins, ends = [], []
    for _ in range(STEPS + 1):
        group.engine.allgather_text("ready")
        begins.append(time.monotonic())
        with pipeline_trace() as trace:
            train_stages(
                X, y, params, places, 1e-9, stages=stages, schedule=schedule,
                micro_batches=MICRO,
            )  # fmt: skip
        ends.append(time.monotonic())
    return begins[1:], ends[1:], trace.makespan  # the first one warms up


def measure_all(slot: float) -> list:
    return [measure(schedule, v, slot) for schedule, v in RUNS]


@pytest.mark.torch
@pytest.mark.skipif(not SLOT, reason="takes a minute; ask with D2LMULTI_SLOT=0.02")
@pytest.mark.parametrize("engine", ["shared_memory", "torch"])
def test_slots_on_the_wall_clock(load: Any, engine: str) -> None:
    load("torch")
    run = launch(measure_all, RANKS, SLOT, engine=engine, backend="torch", timeout=500)
    for i, (schedule, v) in enumerate(RUNS):
        each = [value[i] for value in run.values]
        ends = np.max([ends for _, ends, _ in each], axis=0)
        begins = np.min([begins for begins, _, _ in each], axis=0)
        slots = sorted((ends - begins) / SLOT)
        modelled = each[0][2]
        assert all(found[2] == modelled for found in each)
        times = " ".join(f"{t:.1f}" for t in slots)
        print(f"\n{engine:13} {schedule:11} v={v}  wall {times}  trace {modelled:g}")
