"""Put a model's parameters where their stages are, and bring them together again."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor
from ...backends.sizes import nbytes
from ...cluster.ledger import open_ledgers
from ...comm.collectives import broadcast
from ...comm.group import Group, current_group, group_for
from ...errors import InvalidInput
from .cutting import Stage


def place_params(
    params: Sequence[Tensor],
    stages: Sequence[Stage],
    devices: Sequence[AnyDevice],
    group: Group | None = None,
) -> list[list[Tensor]]:
    """Copy every stage's parameters to its device and attach gradients.

    Stage s lies on rank s mod p; with more stages than ranks, each rank has several.
    Gives one list for each stage of this process's ranks. Raises `InvalidInput` for
    stages that do not share out evenly, and for a number of parameters that is not the
    stages'.
    """
    group = group_for(len(devices), group)
    check_stages(stages, group)
    if len(params) != stages[-1].last:
        raise InvalidInput(
            f"expected the {stages[-1].last} parameters of the model that was cut, got "
            f"{len(params)}"
        )
    placed = []
    for s in local_stages(len(stages), group):
        device = devices[group.local_ranks.index(s % group.size)]
        of_stage = params[stages[s].first : stages[s].last]
        mine = [backend_of(p).copy_to(p, device) for p in of_stage]
        for p in mine:
            backend_of(p).attach_grad(p)
        placed.append(mine)
    for ledger in open_ledgers():
        ledger.loaded += sum(nbytes(p) for mine in placed for p in mine)
    return placed


def gather_params(
    stage_params: Sequence[Sequence[Tensor]],
    device: AnyDevice = "cpu",
    group: Group | None = None,
) -> list[Tensor]:
    """Copy the parameters of all stages to one device, in the model's order.

    Without a group it is the current one; where that is spread over processes, each of
    them gets all parameters.
    """
    group = group or current_group.get()
    if group is None or not group.spread:
        return [backend_of(p).copy_to(p, device) for mine in stage_params for p in mine]
    B = backend_of(stage_params[0][0])
    forms = [[[list(p.shape), B.dtype_of(p)] for p in mine] for mine in stage_params]
    everyones = [
        json.loads(text) for text in group.transport.tell_all(json.dumps(forms))
    ]
    gathered: list[Tensor] = []
    for stage in range(len(stage_params) * group.size):
        turn, owner = divmod(stage, group.size)
        for i, (shape, dtype) in enumerate(everyones[owner][turn]):
            whole = B.zeros(shape, dtype, device)
            if owner in group.local_ranks:
                whole = B.copy_to(stage_params[turn][i], device)
            broadcast([whole], owner, group)
            gathered.append(whole)
    return gathered


def local_stages(stages: int, group: Group) -> list[int]:
    """Name the stages of this process's ranks, in order."""
    return [s for s in range(stages) if s % group.size in group.local_ranks]


def check_stages(stages: Sequence[Stage], group: Group) -> None:
    """Refuse stages that do not give every rank the same number of them."""
    if not stages or len(stages) % group.size:
        raise InvalidInput(
            f"expected as many stages as devices, or a multiple of it, got "
            f"{len(stages)} stages for {group.size} devices; cut with "
            "cut_stages(model, len(devices))"
        )
