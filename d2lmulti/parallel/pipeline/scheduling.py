"""The lists of a step, proved before the first tensor moves, and where stages lie."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...checks import check_choice, check_list
from ...comm.group import Group
from ...errors import PlanError
from ...plans.pipeline import (
    AnyInstruction,
    Durations,
    Lists,
    stage_ranks,
    verify_schedule,
)
from ...plans.schedules import SCHEDULES, Schedule
from .placing import check_shares

_RECOMPUTED = Durations(backward=3, backward_input=2)  # each has a forward pass in it


def make_lists(
    schedule: str | Schedule | Lists,
    stages: int,
    micro_batches: int,
    group: Group,
    recompute: bool = False,
) -> tuple[Lists, list[int]]:
    """Give the lists of all ranks, and the rank of every stage, which they say.

    Raises `InvalidInput` for an unknown name, and for a number of stages that is not a
    multiple of the ranks' (only lists may share them out unevenly); `PlanError` for
    lists of another number of ranks, and for those that `verify_schedule` refuses.
    """
    if isinstance(schedule, (list, tuple)):
        lists = schedule
    else:
        check_shares(stages, group)
        p, v = group.size, stages // group.size
        if callable(schedule):
            lists = schedule(p, micro_batches, v)
        else:
            check_choice("schedule", schedule, SCHEDULES)
            lists = _remembered(schedule, p, micro_batches, v, recompute)
    if len(lists) != group.size:
        raise PlanError(
            f"expected a list for each of {group.size} devices, got {len(lists)}; make "
            "the schedule for as many devices as there are"
        )
    for mine in lists:
        check_list("a device's list", mine, "instructions")
    given = tuple(map(tuple, lists))
    return lists, list(_proved(given, stages, micro_batches))


@lru_cache(maxsize=64)  # every step of a run has the same lists
def _remembered(name: str, p: int, m: int, v: int, recompute: bool) -> Lists:
    return SCHEDULES[name](p, m, v, _RECOMPUTED if recompute else None)


@lru_cache(maxsize=64)
def _proved(
    lists: Sequence[Sequence[AnyInstruction]], stages: int, micro_batches: int
) -> list[int]:
    verify_schedule(lists, stages, micro_batches)
    return stage_ranks(lists, stages)
