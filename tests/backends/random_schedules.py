"""Random placements and orders: whatever the proof accepts must train right."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from d2lmulti.plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    StageTransfer,
    Step,
    add_transfers,
    arrival,
    awaited,
    made,
    needs,
    send_of,
)
from d2lmulti.plans.schedules import zb_v

MOST_STAGES = 6
KINDS = (Forward, Backward, BackwardInput, BackwardWeight, StageTransfer)


class Drawn(NamedTuple):
    """A schedule that nobody has thought of."""

    lists: Lists
    stages: int
    micro_batches: int
    examples: int

    @property
    def devices(self) -> int:
        return len(self.lists)


def draw(seed: int, devices: int | None = None) -> Drawn:
    """Draw a placement, an order of computations, and one of messages.

    Any stages on any device, unevenly too; some ways back whole and some in halves; any
    order in which each input is there before it is used. A message happens at both of
    its ends at once, at any time between its making and its use; or, every third time,
    `add_transfers` puts the messages in.
    """
    rng = np.random.default_rng(seed)
    p = devices or int(rng.integers(1, 5))
    stages = int(rng.integers(p, MOST_STAGES + 1))
    micro_batches = int(rng.integers(1, 6))
    examples = micro_batches + int(rng.integers(0, 4))
    ranks = [*range(p), *rng.integers(0, p, stages - p).tolist()]
    rng.shuffle(ranks)
    split = rng.random((stages, micro_batches)) < rng.choice([0, 0.5, 1])
    left: set[Instruction] = set()
    for s in range(stages):
        for k in range(micro_batches):
            halves = (BackwardInput(s, k), BackwardWeight(s, k))
            left |= {Forward(s, k), *(halves if split[s, k] else (Backward(s, k),))}
    receive_of = {awaited(r): r for i in left if (r := arrival(i, ranks))}
    weights = {kind: rng.random() ** 3 + 0.01 for kind in KINDS}  # some hurry
    order: list[list[Instruction]] = [[] for _ in range(p)]
    lists: Lists = [[] for _ in range(p)]
    waiting: dict[StageTransfer, int] = {}
    done: set = set()
    arrived: set[StageTransfer] = set()
    while left or waiting:
        able: list = [i for i in left if needs(i, ranks) <= done]
        able = [i for i in able if arrival(i, ranks) in {None, *arrived}]
        able = sorted([*able, *waiting], key=str)  # sets have an order of their own
        chances = np.array([weights.get(type(i), weights[StageTransfer]) for i in able])
        i = able[int(rng.choice(len(able), p=chances / chances.sum()))]
        if isinstance(i, StageTransfer):
            d = waiting.pop(i)
            arrived.add(i)
            lists[i.device].append(send_of(i, d))
            lists[d].append(i)
            continue
        left.remove(i)
        done.add(made(i))
        order[ranks[i.stage]].append(i)
        lists[ranks[i.stage]].append(i)
        if receive := receive_of.get(made(i)):
            waiting[receive] = ranks[receive.stage]
    lists = [[*mine, Step()] for mine in lists]
    if seed % 3 == 0:
        lists = add_transfers(order)
    return Drawn(lists, stages, micro_batches, examples)


def v_with_late_weights() -> Drawn:
    """ZB-V on two devices, the weights' gradients of the last stage after all else."""
    first, second = zb_v(2, 4)
    late = [i for i in first if isinstance(i, BackwardWeight) and i.stage == 3]
    order = [[i for i in first if i not in late] + late, second]
    return Drawn(add_transfers(order), 4, 4, 5)
