"""A training step in stages: the lists, checked before a tensor moves, carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

from ...backends.protocol import AnyDevice, Tensor
from ...checks import check_choice, check_count, check_lists
from ...comm.group import Group
from ...comm.split import load
from ...errors import InvalidInput, PlanError, framework_errors, plural
from ...models.model import losses_of
from ...optimizers import Optimizer
from ...plans.pipeline import (
    AnyInstruction,
    Durations,
    Lists,
    stage_ranks,
    verify_schedule,
)
from ...plans.rounds import even_bounds
from ...plans.schedules import SCHEDULES, Schedule
from ..step import Step
from .executor import Executor, Line, Run
from .stages import Stage, check_shares, local_stages, ranks_of

_RECOMPUTED = Durations(backward=3, backward_input=2)  # each has a forward pass in it


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
    group: Group | None = None,
) -> list[Tensor]:
    """Take one step on a batch with the network cut into stages.

    X (n, ...), y (n, ...): the whole batch; the first stage gets X, the last one y, in
    micro-batches as even as possible. stage_params: from `place_params`, updated in
    place; `stages`: from `cut_stages`. The gradient is the sum over all targets in y,
    divided once by their number. `schedule`: a name, a function of (devices, micro-
    batches, stages per device), or the lists themselves; they say which rank computes
    which stage, and the parameters must lie there. `states`: the optimizer's, one per
    *stage*. With `recompute` a stage stores its input only and runs forward again in
    the backward pass. Returns each micro-batch's summed loss, not yet waited for; in a
    group of processes, that of the last stage has them, and the others return none.
    There, `stage_params` and `states` are those of this process's stages, and X and y
    are still the whole batch.

    Before anything moves, raises `InvalidInput` for fewer examples than micro-batches,
    an unknown schedule and parameters that lie elsewhere, and `PlanError`, which names
    device and instruction, for lists that are no right schedule.
    """
    check_lists("stage_params", stage_params, len(stage_params), "stage")
    step = Step(
        X, y, devices, lr, optimizer=optimizer, states=states, group=group,
        vocabulary=stages[0].vocabulary, stages=len(stage_params),
    )  # fmt: skip
    bounds = micro_bounds(len(X), micro_batches)
    lists, ranks = make_lists(
        schedule, len(stages), micro_batches, step.group, recompute
    )
    local = _check_placed(stage_params, stages, ranks, step.group)
    step.clear_(stage_params)

    places = dict(zip(step.group.local_ranks, devices, strict=True))
    by_stage = dict(zip(local, stage_params, strict=True))
    layers = _Layers(step, stages, by_stage, bounds, places.get(ranks[0]),
                     places.get(ranks[-1]))  # fmt: skip

    def update(rank: int) -> None:
        for i, s in enumerate(local):
            if ranks[s] == rank:
                step.optimizer.step_(stage_params[i], step.states[i], lr, n=step.n)

    executor = Executor(layers, [Line(step.group, places)], recompute)
    losses = executor.run(lists, update)
    return [loss for k in sorted(losses) for loss in losses[k]]


class _Layers:
    """The stages of a pipeline on one axis: each is layers, computed by one rank."""

    def __init__(
        self,
        step: Step,
        stages: Sequence[Stage],
        stage_params: Mapping[int, Sequence[Tensor]],
        bounds: Sequence[tuple[int, int]],
        first: AnyDevice | None,
        last: AnyDevice | None,
    ) -> None:
        self.step, self.stages, self.stage_params = step, stages, stage_params
        self.B, self.count = step.B, len(stages)
        self.bounds, self.first, self.last = bounds, first, last

    def inputs(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's examples."""
        return [load(self.step.X[slice(*self.bounds[micro])], self.first)]

    def targets(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's targets."""
        return [load(self.step.y[slice(*self.bounds[micro])], self.last)]

    def params(self, stage: int) -> Sequence[Tensor]:
        """Return a stage's parameters."""
        return self.stage_params[stage]

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        """Run the stage's layers, and on the last stage the loss."""
        B, params, first = self.B, self.stage_params[stage], 0
        (H,), outputs = xs, []
        with framework_errors(f"stage {stage}", H):
            for layer in self.stages[stage].layers:
                H = layer.forward(B, params[first : first + layer.params], H)
                outputs.append(H)
                first += layer.params
            if ys is not None:
                H = losses_of(B, H, ys[0], self.step.y).sum()
        return Run([H], outputs, B.backward)


def make_lists(
    schedule: str | Schedule | Lists,
    stages: int,
    micro_batches: int,
    group: Group,
    recompute: bool = False,
) -> tuple[Lists, list[int]]:
    """Return the lists of all ranks, and the rank of every stage, which they say.

    Raises `InvalidInput` for an unknown name, and for a number of stages that is not a
    multiple of the ranks' (only lists may distribute them unevenly); `PlanError` for
    lists of another number of ranks, and for those that `verify_schedule` refuses.
    """
    if isinstance(schedule, (list, tuple)):
        lists: Lists = schedule
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
    return lists, list(_verified(tuple(map(tuple, lists)), stages, micro_batches))


@lru_cache(maxsize=64)  # every step of a run has the same lists
def _remembered(name: str, p: int, m: int, v: int, recompute: bool) -> Lists:
    return SCHEDULES[name](p, m, v, _RECOMPUTED if recompute else None)


@lru_cache(maxsize=64)
def _verified(
    lists: Sequence[Sequence[AnyInstruction]], stages: int, micro_batches: int
) -> list[int]:
    verify_schedule(lists, stages, micro_batches)
    return stage_ranks(lists, stages)


def _check_placed(
    stage_params: Sequence[Sequence[Tensor]],
    stages: Sequence[Stage],
    ranks: Sequence[int],
    group: Group,
) -> list[int]:
    """Return this process's stages, if their parameters are those that were given."""
    placed = ranks_of(stage_params, len(stages), group)
    for s, (placed_on, expected) in enumerate(zip_longest(placed, ranks)):
        if placed_on != expected:
            raise InvalidInput(
                f"expected the parameters of stage {s} on rank {expected}, which "
                f"computes it in this schedule, got them on {placed_on}; make them "
                "with place_params(params, stages, devices, stage_ranks(lists))"
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


def micro_bounds(examples: int, micro_batches: int) -> list[tuple[int, int]]:
    """Split so many examples into micro-batches, as evenly as possible."""
    check_count("micro_batches", micro_batches)
    if examples < micro_batches:
        raise InvalidInput(
            f"cannot split {plural(examples, 'example')} into {micro_batches} "
            f"micro-batches; use at least {micro_batches} examples or fewer of them"
        )
    return even_bounds(examples, micro_batches)
