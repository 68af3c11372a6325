"""Messages for a pipeline schedule, in an order in which none can wait for ever.

An engine's send may wait until its receiver is there. If each device listed its own
messages where they suit it best, two devices could wait for each other. So all messages
get *one* order for everybody, and each device lists its share of it: the first message
that is not done yet then always finds both of its ends waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PlanError
from .instructions import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    ReceiveActivation,
    ReceiveGradient,
    Step,
    Transfer,
    partner,
)


def add_transfers(order: Sequence[Sequence[Instruction]]) -> Lists:
    """Put sends, receives and a step at the end into what each device computes.

    Play it in slots of equal length. Before a slot, all that its computations need
    moves, in one order of stages and micro-batches; not earlier, because the maker of
    an activation has to keep it anyway. Raises `PlanError` where nobody can go on.
    """
    owner = {i.stage: d for d, some in enumerate(order) for i in some}
    lists: Lists = [[] for _ in order]
    done: set[tuple[str, int, int]] = set()
    at = [0] * len(order)
    while any(i < len(some) for i, some in zip(at, order, strict=True)):
        heads = [
            (d, some[i])
            for d, (i, some) in enumerate(zip(at, order, strict=True))
            if i < len(some) and needs(some[i], owner) <= done
        ]
        if not heads:
            d = next(d for d, some in enumerate(order) if at[d] < len(some))
            raise PlanError(
                f"device {d}, {order[d][at[d]]}: nobody can go on, because each device "
                "waits for what another computes later"
            )
        for d, instruction in sorted(heads, key=lambda h: (h[1].stage, h[1].micro)):
            receive = arrival(instruction, owner)
            if receive:
                lists[receive.device].append(partner(receive, d))
                lists[d].append(receive)
        for d, instruction in heads:
            lists[d].append(instruction)
            done.add(made(instruction))
            at[d] += 1
    for mine in lists:
        mine.append(Step())
    return lists


def made(instruction: Instruction) -> tuple[str, int, int]:
    """Name what a computation makes: an activation, a gradient, or nothing to send."""
    kind = "activation" if isinstance(instruction, Forward) else "gradient"
    if isinstance(instruction, BackwardWeight):
        kind = "weights"
    return kind, instruction.stage, instruction.micro


def needs(instruction: Instruction, owner: dict[int, int]) -> set[tuple[str, int, int]]:
    """Name what must have been made, here or elsewhere, before a computation."""
    stage, micro = instruction.stage, instruction.micro
    if isinstance(instruction, Forward):
        return {("activation", stage - 1, micro)} if stage - 1 in owner else set()
    if isinstance(instruction, BackwardWeight):
        return {("gradient", stage, micro)}
    after = {("gradient", stage + 1, micro)} if stage + 1 in owner else set()
    return {("activation", stage, micro)} | after


def arrival(instruction: Instruction, owner: dict[int, int]) -> Transfer | None:
    """Name the message that a computation waits for, or None."""
    stage, micro, here = instruction.stage, instruction.micro, owner[instruction.stage]
    if isinstance(instruction, Forward):
        source = owner.get(stage - 1, here)
        return None if source == here else ReceiveActivation(stage, micro, source)
    if isinstance(instruction, (Backward, BackwardInput)):
        source = owner.get(stage + 1, here)
        return None if source == here else ReceiveGradient(stage, micro, source)
    return None
