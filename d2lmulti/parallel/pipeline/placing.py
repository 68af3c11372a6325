"""Put a model's parameters where their stages are, and bring them together again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor
from ...checks import check_kind, check_list, check_lists
from ...comm.collectives import broadcast
from ...comm.group import Group, current_group, group_for
from ...comm.split import load
from ...errors import InvalidInput, plural
from .cutting import Stage


class StageParams(list[list[Tensor]]):
    """The parameters of this process's stages, and the ranks of all stages."""

    def __init__(self, params: Iterable[list[Tensor]], ranks: Sequence[int]) -> None:
        super().__init__(params)
        self.ranks = list(ranks)


def place_params(
    params: Sequence[Tensor],
    stages: Sequence[Stage],
    devices: Sequence[AnyDevice],
    ranks: Sequence[int] | None = None,
    group: Group | None = None,
) -> StageParams:
    """Copy every stage's parameters to its device and attach gradients.

    Stage s lies on rank `ranks[s]`, as `stage_ranks(lists)` gives them for a schedule;
    without `ranks` on rank s mod p. Gives one list for each stage of this process's
    ranks, in order. Raises `InvalidInput` for stages that do not share out evenly over
    s mod p, for ranks that do not fit, and for a number of parameters that is not the
    stages'.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    check_stages(stages)
    check_list("params", params, "tensors", hint="take them from model.initial(rng)")
    group = group_for(len(devices), group)
    ranks = check_ranks(ranks, len(stages), group)
    if len(params) != stages[-1].last:
        raise InvalidInput(
            f"expected the {stages[-1].last} parameters of the model that was cut, got "
            f"{len(params)}"
        )
    placed = StageParams([], ranks)
    for s in local_stages(ranks, group):
        device = devices[group.local_ranks.index(ranks[s])]
        of_stage = params[stages[s].first : stages[s].last]
        mine = [load(p, device) for p in of_stage]
        for p in mine:
            backend_of(p).attach_grad(p)
        placed.append(mine)
    return placed


def gather_stages(
    stage_params: Sequence[Sequence[Tensor]],
    device: AnyDevice = "cpu",
    group: Group | None = None,
) -> list[Tensor]:
    """Copy the parameters of all stages to one device, in the model's order.

    stage_params: from `place_params`, which remember the ranks of their stages; other
    lists are taken as lying on rank s mod p. Without a group it is the current one;
    where that is spread over processes, each of them gets all parameters.
    """
    check_list("stage_params", stage_params, "lists of tensors, one a stage")
    check_lists("stage_params", stage_params, len(stage_params), "stage")
    if group is None:
        group = current_group.get()
    else:
        check_kind("group", group, Group, "a group of ranks")
    if group is None or not group.is_distributed:
        return [backend_of(p).copy_to(p, device) for mine in stage_params for p in mine]
    B = backend_of(stage_params[0][0])
    ranks = ranks_of(stage_params, len(stage_params) * group.size, group)
    forms = [[[list(p.shape), B.dtype_of(p)] for p in mine] for mine in stage_params]
    allgather_values = [
        json.loads(text) for text in group.engine.allgather_text(json.dumps(forms))
    ]
    gathered: list[Tensor] = []
    for stage, owner in enumerate(ranks):
        turn = ranks[:stage].count(owner)
        for i, (shape, dtype) in enumerate(allgather_values[owner][turn]):
            whole = B.zeros(shape, dtype, device)
            if owner in group.local_ranks:
                mine = local_stages(ranks, group).index(stage)
                whole = B.copy_to(stage_params[mine][i], device)
            broadcast([whole], owner, group)
            gathered.append(whole)
    return gathered


def ranks_of(
    stage_params: Sequence[Sequence[Tensor]], stages: int, group: Group
) -> list[int]:
    """Give the ranks of all stages: as they were placed, or s mod p for other lists."""
    if isinstance(stage_params, StageParams):
        return stage_params.ranks
    return [s % group.size for s in range(stages)]


def local_stages(ranks: Sequence[int], group: Group) -> list[int]:
    """Name the stages of this process's ranks, in order."""
    return [s for s, rank in enumerate(ranks) if rank in group.local_ranks]


def check_ranks(ranks: Sequence[int] | None, stages: int, group: Group) -> list[int]:
    """Give the ranks of all stages, s mod p if they are not given."""
    if ranks is None:
        check_shares(stages, group)
        return [s % group.size for s in range(stages)]
    check_list("ranks", ranks, "ranks, one a stage")
    if len(ranks) != stages or set(ranks) != set(range(group.size)):
        raise InvalidInput(
            f"expected a rank from 0 to {group.size - 1} for each of {stages} stages, "
            f"and each rank at least once, got {list(ranks)}; take them from a "
            "schedule with stage_ranks(lists)"
        )
    return [int(rank) for rank in ranks]


def check_stages(stages: Sequence[Stage]) -> None:
    """Refuse what `cut_stages` has not made."""
    for stage in check_list("stages", stages, "stages", hint="use cut_stages"):
        check_kind("a stage", stage, Stage, "a Stage", "use cut_stages")


def check_shares(stages: int, group: Group) -> None:
    """Refuse stages that do not give every rank the same number of them."""
    if not stages or stages % group.size:
        raise InvalidInput(
            f"expected as many stages as devices, or a multiple of it, got "
            f"{plural(stages, 'stage')} for {plural(group.size, 'device')}; cut with "
            "cut_stages(model, len(devices))"
        )
