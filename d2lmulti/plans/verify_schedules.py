"""Prove a pipeline schedule right as data: what happens before what, and that it ends.

Every computation once, on the device that has the stage; every input there before it is
used; every message sent once and taken once; no deadlock, whether sends wait for their
receivers or not. No tensor is needed, so all small cases can be checked.
Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import PlanError
from .instructions import (
    AnyInstruction,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Step,
    Transfer,
    partner,
)
from .transfers import arrival, made, needs
from .turns import Receives, turns

Given = Sequence[Sequence[AnyInstruction]]


def verify_schedule(lists: Given, stages: int, micro_batches: int) -> None:
    """Check the lists of all devices for this many stages and micro-batches.

    Raises `PlanError`, which names the device and the instruction: for work that is
    missing, done twice or done elsewhere, a use before it is made, a message that is
    lost, doubled or out of order, and for a deadlock, with rendezvous sends too.
    """
    owner = _owners(lists, stages)
    _check_work(lists, owner, micro_batches)
    _check_messages(lists, owner)
    for rendezvous in (False, True):
        _check_order(lists, owner, rendezvous)


def _owners(lists: Given, stages: int) -> dict[int, int]:
    owner: dict[int, int] = {}
    for d, mine in enumerate(lists):
        for i in mine:
            if isinstance(i, Step):
                continue
            if i.stage not in range(stages):
                raise PlanError(
                    f"device {d}, {i}: expected a stage from 0 to {stages - 1}"
                )
            if not isinstance(i, Transfer) and owner.setdefault(i.stage, d) != d:
                raise PlanError(
                    f"device {d}, {i}: stage {i.stage} lies on device {owner[i.stage]}"
                )
    for stage in range(stages):
        if stage not in owner:
            raise PlanError(
                f"no device computes stage {stage}; expected each to have one"
            )
    return owner


def _check_work(lists: Given, owner: dict[int, int], micro_batches: int) -> None:
    for d, mine in enumerate(lists):
        count = Counter(i for i in mine if not isinstance(i, Transfer))
        if count[Step()] != 1 or mine[-1] != Step():
            raise PlanError(f"device {d}: expected one Step(), at the end")
        del count[Step()]
        expected: Counter[AnyInstruction] = Counter()
        for stage in (s for s, device in owner.items() if device == d):
            for k in range(micro_batches):
                expected[Forward(stage, k)] = 1
                # The way back is whole or in two halves, but one of the two.
                halves = [BackwardInput(stage, k), BackwardWeight(stage, k)]
                whole = [] if any(count[half] for half in halves) else [0]
                expected.update([Backward(stage, k)] if whole else halves)
        _compare(d, count, expected)


def _check_messages(lists: Given, owner: dict[int, int]) -> None:
    """Compare the messages there are with those that the computations need."""
    expected = [Counter[AnyInstruction]() for _ in lists]
    for d, mine in enumerate(lists):
        for i in mine:
            if isinstance(i, Instruction) and not isinstance(i, Transfer):
                receive = arrival(i, owner)
                if receive:
                    expected[d][receive] += 1
                    expected[receive.device][partner(receive, d)] += 1
    for d, mine in enumerate(lists):
        count = Counter(i for i in mine if isinstance(i, Transfer))
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


def _check_order(lists: Given, owner: dict[int, int], rendezvous: bool) -> None:
    """Play it, and see that nothing is used before it is made and there."""
    seen: set[tuple[str, int, int]] = set()
    arrived: set[Transfer] = set()
    for d, i in turns(lists, rendezvous):
        if isinstance(i, Step):
            continue
        if isinstance(i, Transfer):
            if isinstance(i, Receives):
                arrived.add(i)
            elif _message(i) not in seen:
                raise PlanError(f"device {d}, {i}: it is sent before it is computed")
            continue
        receive = arrival(i, owner)
        if receive and receive not in arrived:
            raise PlanError(f"device {d}, {i}: it comes before {receive}")
        missing = sorted(needs(i, owner) - seen)
        if missing:
            kind, stage, micro = missing[0]
            raise PlanError(
                f"device {d}, {i}: it comes before the {kind} of stage {stage}, "
                f"micro-batch {micro}, is computed"
            )
        seen.add(made(i))


def _message(send: Transfer) -> tuple[str, int, int]:
    kind = "activation" if "Activation" in type(send).__name__ else "gradient"
    return kind, send.stage, send.micro
