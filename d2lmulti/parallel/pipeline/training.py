"""A training step over stages: the micro-batches' gradients add up to the batch's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor, element_count
from ...checks import (
    check_count,
    check_flag,
    check_kind,
    check_list,
    check_lists,
    check_positive,
)
from ...comm.group import Group, group_for
from ...comm.split import check_batch
from ...errors import InvalidInput, plural
from ...observe.pipeline_record import PipelineRecord
from ...optimizers import Optimizer, check_optimizer, check_states
from ...plans.pipeline import Lists
from ...plans.rounds import even_bounds
from ...plans.schedules import Schedule
from .cutting import Stage
from .executor import Batch, Executor
from .placing import check_stages, local_stages, ranks_of
from .scheduling import make_lists


def train_stages(
    X: Tensor,
    y: Tensor,
    stage_params: Sequence[Sequence[Tensor]],
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    stages: Sequence[Stage],
    schedule: str | Schedule | Lists = "1f1b",
    micro_batches: int = 4,
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    recompute: bool = False,
    input_grad: Tensor | None = None,
    record: PipelineRecord | None = None,
    group: Group | None = None,
) -> list[Tensor]:
    """Take one step on a batch with the network cut into stages.

    X (n, ...), y (n, ...): the whole batch; the first stage gets X, the last one y, in
    micro-batches as even as possible. stage_params: from `place_params`, updated in
    place; `stages`: from `cut_stages`. The gradient is the sum over all targets in y,
    divided once by their number. `schedule`: a name, a function of (devices, micro-
    batches, stages a device), or the lists themselves; they say which rank computes
    which stage, and the parameters must lie there. `states` are the optimizer's, one a
    *stage*. With `recompute` a stage keeps its input only and runs forward again on
    the way back. `input_grad`, shaped as X, is overwritten with the gradient of the
    summed loss. A `record` holds afterwards what ran when, and what was kept. Returns
    each micro-batch's summed loss, not yet waited for; in a group of processes, that of
    the last stage has them, and the others return none. There, `stage_params` and
    `states` are those of this process's stages, X and y are still the whole batch, and
    a record holds what everyone computed, but what was kept only of the own stages.
    Before anything moves, raises `InvalidInput` for fewer examples than micro-batches,
    an unknown schedule and parameters that lie elsewhere, and `PlanError`, which names
    device and instruction, for lists that are no right schedule.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    check_positive("lr", lr, "try 0.05")
    check_flag("recompute", recompute)
    check_stages(stages)
    check_batch(X, y, stages[0].vocabulary)
    hint = "make them with place_params(params, stages, devices)"
    check_list("stage_params", stage_params, "lists of tensors, one a stage", hint=hint)
    check_lists("stage_params", stage_params, len(stage_params), "stage", hint=hint)
    optimizer = check_optimizer(optimizer)
    record = PipelineRecord() if record is None else record
    check_kind("record", record, PipelineRecord, "a PipelineRecord")
    group = group_for(len(devices), group)
    bounds = _micro_bounds(X, y, micro_batches)
    lists, ranks = make_lists(schedule, len(stages), micro_batches, group, recompute)
    local = _check_placed(stage_params, stages, ranks, group)
    batch = Batch(X, y, bounds, input_grad)
    if input_grad is not None and tuple(input_grad.shape) != tuple(X.shape):
        raise InvalidInput(
            f"expected an input_grad of X's shape {tuple(X.shape)}, got "
            f"{tuple(input_grad.shape)}"
        )
    states = check_states(states, len(local), "stage")

    for params in stage_params:
        for p in params:
            backend_of(p).clear_grad_(p)

    def step(device: int) -> None:
        for i, s in enumerate(local):
            if ranks[s] == device:
                optimizer.step_(stage_params[i], states[i], lr, n=element_count(y))

    placed = dict(zip(local, stage_params, strict=True))
    executor = Executor(stages, placed, devices, group, record, recompute)
    return executor.run(lists, batch, step)


def _check_placed(
    stage_params: Sequence[Sequence[Tensor]],
    stages: Sequence[Stage],
    ranks: Sequence[int],
    group: Group,
) -> list[int]:
    """Name this process's stages, if their parameters are those that were given."""
    placed = ranks_of(stage_params, len(stages), group)
    for s, (there, expected) in enumerate(zip_longest(placed, ranks)):
        if there != expected:
            raise InvalidInput(
                f"expected the parameters of stage {s} on rank {expected}, which "
                f"computes it in this schedule, got them on {there}; make them with "
                "place_params(params, stages, devices, ranks=stage_ranks(lists))"
            )
    local = local_stages(ranks, group)
    counts = [stages[s].last - stages[s].first for s in local]
    if [len(mine) for mine in stage_params] != counts:
        raise InvalidInput(
            f"expected the parameters of {len(local)} stages, got lists of "
            f"{[len(mine) for mine in stage_params]}; make them with "
            "place_params(params, stages, devices)"
        )
    return local


def _micro_bounds(X: Tensor, y: Tensor, micro_batches: int) -> list[tuple[int, int]]:
    check_count("micro_batches", micro_batches)
    if len(X) < micro_batches:
        raise InvalidInput(
            f"cannot split {plural(len(X), 'example')} into {micro_batches} "
            f"micro-batches; use at least {micro_batches} examples or fewer of them"
        )
    return even_bounds(len(X), micro_batches)
