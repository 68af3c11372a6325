"""Prove a pipeline schedule right as data: what happens before what, and that it ends.

Every computation once, on the device that has the stage; every input there before it is
used; every message sent once and taken once; no deadlock, whether sends wait for their
receivers or not. No tensor is needed, so all small cases can be checked.
Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...checks import MAX_RANKS, check_count
from ...errors import PlanError
from .instructions import (
    AnyInstruction,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    StageTransfer,
    Step,
    partner,
)
from .messages import arrival, made, needs
from .simulate import Receives, simulate
from .stage_ranks import stage_ranks

Given = Sequence[Sequence[AnyInstruction]]


def verify_schedule(lists: Given, stages: int, micro_batches: int) -> None:
    """Check the lists of all devices for this many stages and micro-batches.

    Raises `PlanError`, which names the device and the instruction: for work that is
    missing, done twice or on two devices, a use before it is made, a message that is
    lost, doubled or out of order, and for a deadlock, with rendezvous sends too.
    """
    check_count("stages", stages, max=MAX_RANKS)
    check_count("micro_batches", micro_batches, max=MAX_RANKS)
    ranks = stage_ranks(lists, stages)
    _check_work(lists, ranks, micro_batches)
    _check_messages(lists, ranks)
    for rendezvous in (False, True):
        _check_order(lists, ranks, rendezvous)


def _check_work(lists: Given, ranks: Sequence[int], micro_batches: int) -> None:
    for d, mine in enumerate(lists):
        count = Counter(i for i in mine if not isinstance(i, StageTransfer))
        if count[Step()] != 1 or mine[-1] != Step():
            raise PlanError(f"device {d}: expected one Step(), at the end")
        del count[Step()]
        expected: Counter[AnyInstruction] = Counter()
        for stage in (s for s, rank in enumerate(ranks) if rank == d):
            for k in range(micro_batches):
                expected[Forward(stage, k)] = 1
                # The way back is whole or in two halves, but one of the two.
                halves = [BackwardInput(stage, k), BackwardWeight(stage, k)]
                whole = [] if any(count[half] for half in halves) else [0]
                expected.update([Backward(stage, k)] if whole else halves)
        _compare(d, count, expected)


def _check_messages(lists: Given, ranks: Sequence[int]) -> None:
    """Compare the messages there are with those that the computations need."""
    expected = [Counter[AnyInstruction]() for _ in lists]
    for d, mine in enumerate(lists):
        for i in mine:
            if isinstance(i, Instruction) and not isinstance(i, StageTransfer):
                receive = arrival(i, ranks)
                if receive:
                    expected[d][receive] += 1
                    expected[receive.device][partner(receive, d)] += 1
    for d, mine in enumerate(lists):
        count = Counter(i for i in mine if isinstance(i, StageTransfer))
        _compare(d, Counter(count), expected[d])


def _compare(
    d: int, count: Counter[AnyInstruction], expected: Counter[AnyInstruction]
) -> None:
    for i in [*expected, *count]:
        if count[i] != expected[i]:
            raise PlanError(
                f"device {d}: expected {expected[i]} time{'s' * (expected[i] != 1)} "
                f"{i}, got {count[i]}"
            )


def _check_order(lists: Given, ranks: Sequence[int], rendezvous: bool) -> None:
    """Play it, and see that nothing is used before it is made and there."""
    seen: set[tuple[str, int, int]] = set()
    arrived: set[StageTransfer] = set()
    for d, i in simulate(lists, rendezvous):
        if isinstance(i, Step):
            continue
        if isinstance(i, StageTransfer):
            if isinstance(i, Receives):
                arrived.add(i)
            elif _message(i) not in seen:
                raise PlanError(f"device {d}, {i}: it is sent before it is computed")
            continue
        receive = arrival(i, ranks)
        if receive and receive not in arrived:
            raise PlanError(f"device {d}, {i}: it comes before {receive}")
        missing = sorted(needs(i, ranks) - seen)
        if missing:
            kind, stage, micro = missing[0]
            raise PlanError(
                f"device {d}, {i}: it comes before the {kind} of stage {stage}, "
                f"micro-batch {micro}, is computed"
            )
        seen.add(made(i))


def _message(send: StageTransfer) -> tuple[str, int, int]:
    kind = "activation" if "Activation" in type(send).__name__ else "gradient"
    return kind, send.stage, send.micro
