"""Which rank computes which stage: read from the lists, and from nothing else.

Parameters, optimizer states and messages all follow it. Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...checks import check_count, check_kind, check_list
from ...errors import PlanError
from .instructions import AnyInstruction, Instruction, StageTransfer, Step


def stage_ranks(
    lists: Sequence[Sequence[AnyInstruction]], stages: int | None = None
) -> list[int]:
    """Give the rank of every stage, from stage 0 on.

    `stages` is their number; without it, the highest one in the lists is the last.
    Raises `PlanError`, which names the device and the instruction, for a stage on two
    ranks or on none, for one that is not there, and for a rank without a stage.

    >>> from d2lmulti.plans.pipeline.schedules import SCHEDULES
    >>> stage_ranks(SCHEDULES["interleaved"](2, 2, chunks=2))
    [0, 1, 0, 1]
    >>> stage_ranks(SCHEDULES["zb_v"](2, 2))
    [0, 1, 1, 0]
    """
    check_list("lists", lists, "lists of instructions, one a device")
    if stages is not None:
        check_count("stages", stages)
    owner: dict[int, int] = {}
    for d, mine in enumerate(lists):
        for i in check_list(f"list {d}", mine, "instructions", min_length=0):
            check_kind("an instruction", i, (Instruction, Step), "an instruction")
            if isinstance(i, Step):
                continue
            if i.stage < 0 or stages is not None and i.stage >= stages:
                end = "on" if stages is None else f"to {stages - 1}"
                raise PlanError(f"device {d}, {i}: expected a stage from 0 {end}")
            if not isinstance(i, StageTransfer) and owner.setdefault(i.stage, d) != d:
                raise PlanError(
                    f"device {d}, {i}: stage {i.stage} lies on device {owner[i.stage]}"
                )
    count = max(owner, default=-1) + 1 if stages is None else stages
    for stage in range(count):
        if stage not in owner:
            raise PlanError(
                f"no device computes stage {stage}; expected each to have one"
            )
    for d in range(len(lists)):
        if d not in owner.values():
            raise PlanError(
                f"device {d} computes no stage; expected each to have at least one"
            )
    return [owner[stage] for stage in range(count)]
