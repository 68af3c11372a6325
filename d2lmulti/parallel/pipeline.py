"""Pipeline parallelism: the network is cut into stages, one or more per device.

The slowest stage limits a pipeline, so a good cut gives all stages the same work.
Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_choice, check_count, check_lists
from ..comm.collectives import broadcast
from ..comm.group import Group, current_group, group_for
from ..errors import InvalidInput, PlanError, plural
from ..models import get_model
from ..models.networks import Layer, Model, framework_errors, losses_of
from ..optimizers import Optimizer
from ..plans.pipeline import (
    AnyInstruction,
    Durations,
    Lists,
    stage_ranks,
    verify_schedule,
)
from ..plans.rounds import even_bounds
from ..plans.schedules import SCHEDULES, Schedule
from .executor import Executor, Line, Run
from .step import Step, load


class Stage(NamedTuple):
    """Neighboring layers, and their range of the model's parameters."""

    layers: tuple[Layer, ...]
    first: int  # its parameters are params[first:last]
    last: int
    vocabulary: int = 0  # the model's: if not 0, its examples are ids below it


def cut_stages(
    model: str | Model,
    stages: int,
    by: str = "layers",
    costs: Sequence[float] | None = None,
) -> list[Stage]:
    """Cut the model's layers into `stages` neighboring groups, none of them empty.

    by `layers`: as many layers in each as evenly as possible. by `cost`: so that the
    most expensive stage is as cheap as possible; `costs` has one number per layer.
    Raises `InvalidInput` for a model that is not a sequence of layers, for more stages
    than layers and for a stage without parameters.
    """
    model = get_model(model)
    count = len(model.layers)
    if not count:
        raise InvalidInput(
            f"cannot cut the model {model.name!r} into stages: it is not written as a "
            "sequence of layers (batch normalization that communicates in mid-forward "
            "cannot be); use a model with `layers`, such as lenet or deep_mlp"
        )
    check_count("stages", stages)
    check_choice("by", by, ("layers", "cost"))
    if stages > count:
        raise InvalidInput(
            f"cannot cut the {plural(count, 'layer')} of {model.name!r} into "
            f"{stages} stages; use at most {plural(count, 'stage')} or a deeper model"
        )
    if by == "layers":
        bounds = even_bounds(count, stages)
    elif costs is None or len(costs) != count:
        raise InvalidInput(
            f"expected one cost for each of {count} layers, got {costs!r:.80}"
        )
    else:
        bounds = _balanced(costs, stages)
    edges = [0, *accumulate(layer.params for layer in model.layers)]
    cut = [
        Stage(model.layers[a:b], edges[a], edges[b], model.vocabulary)
        for a, b in bounds
    ]
    for number, stage in enumerate(cut):
        if stage.first == stage.last:
            raise InvalidInput(
                f"stage {number} of {model.name!r} would have no parameters "
                f"({', '.join(layer.name for layer in stage.layers)}); use fewer stages"
            )
    return cut


def _balanced(costs: Sequence[float], stages: int) -> list[tuple[int, int]]:
    """Return bounds of groups such that the most expensive is as cheap as possible.

    Of several such cuts, return the one with the smallest sum of squared costs.
    """
    sums = [0.0, *accumulate(costs)]

    @cache
    def best(last: int, groups: int) -> tuple[float, float, tuple[int, ...]]:
        """Cut layers 0 to last; return the largest cost, sum of squares, edges."""
        if groups == 1:
            return sums[last], sums[last] ** 2, (0, last)
        cuts = []
        for edge in range(groups - 1, last):
            worst, squares, edges = best(edge, groups - 1)
            cost = sums[last] - sums[edge]
            cuts.append((max(worst, cost), squares + cost**2, (*edges, last)))
        return min(cuts)

    *_, edges = best(len(costs), stages)
    return list(zip(edges[:-1], edges[1:], strict=True))


class StageParams(list[list[Tensor]]):
    """The parameters of this process's stages, `local`, and the ranks of all stages."""

    def __init__(
        self, params: Iterable[list[Tensor]], ranks: Sequence[int], group: Group
    ) -> None:
        super().__init__(params)
        self.ranks = list(ranks)
        self.local = [s for s, rank in enumerate(ranks) if rank in group.local_ranks]


def place_params(
    params: Sequence[Tensor],
    stages: Sequence[Stage],
    devices: Sequence[AnyDevice],
    ranks: Sequence[int] | None = None,
) -> StageParams:
    """Copy every stage's parameters to its device and attach gradients.

    Stage s is placed on rank `ranks[s]`, as `stage_ranks(lists)` returns them for a
    schedule; without `ranks` on rank s mod p. Returns one list for each stage of this
    process's ranks, in order. Raises `InvalidInput` for ranks that do not fit, and for
    another number of parameters than the stages have.
    """
    group = group_for(len(devices))
    if ranks is None:
        ranks = [s % group.size for s in range(len(stages))]
    if len(ranks) != len(stages) or set(ranks) != set(range(group.size)):
        raise InvalidInput(
            f"expected a rank from 0 to {group.size - 1} for each of {len(stages)} "
            f"stages, and each rank at least once, got {list(ranks)}; take them from a "
            "schedule with stage_ranks(lists)"
        )
    if len(params) != stages[-1].last:
        raise InvalidInput(
            f"expected the {stages[-1].last} parameters of the model that was cut, got "
            f"{len(params)}; take them from model.initial(rng) of the same model"
        )
    placed = StageParams([], ranks, group)
    for s in placed.local:
        device = devices[group.local_ranks.index(ranks[s])]
        placed.append(
            [load(p, device) for p in params[stages[s].first : stages[s].last]]
        )
        for p in placed[-1]:
            backend_of(p).attach_grad(p)
    return placed


def gather_stages(stage_params: StageParams, device: AnyDevice = "cpu") -> list[Tensor]:
    """Copy the parameters of all stages to one device, in the model's order.

    stage_params: from `place_params`. In a group of processes, each process gets all
    parameters.
    """
    group = current_group.get()
    if group is None or not group.is_distributed:
        return [backend_of(p).copy_to(p, device) for held in stage_params for p in held]
    B = backend_of(stage_params[0][0])
    specs = [[[list(p.shape), B.dtype_of(p)] for p in held] for held in stage_params]
    texts = group.engine.allgather_text(json.dumps(specs))
    specs_by_rank = [json.loads(text) for text in texts]
    local, gathered = stage_params.local, []
    for stage, owner in enumerate(stage_params.ranks):
        for i, (shape, dtype) in enumerate(specs_by_rank[owner].pop(0)):
            full = B.zeros(shape, dtype, device)
            if stage in local:
                full = B.copy_to(stage_params[local.index(stage)][i], device)
            broadcast([full], owner, group)
            gathered.append(full)
    return gathered


_RECOMPUTED = Durations(backward=3, backward_input=2)  # each has a forward pass in it


def train_stages(
    X: Tensor,
    y: Tensor,
    stage_params: StageParams,
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
    batches, stages per device), or the lists themselves, which determine the rank of
    each stage; the parameters must be there. `states`: the optimizer's, one per
    *stage*. With `recompute` a stage stores its input only and repeats the forward pass
    in the backward pass. Returns each micro-batch's summed loss, not yet waited for; in
    a group of processes, that of the last stage has them, and the others return none.
    There, `stage_params` and `states` are those of this process's stages, and X and y
    are still the whole batch.

    Before any transfer, raises `InvalidInput` for fewer examples than micro-batches, an
    unknown schedule, and parameters on other ranks, and `PlanError`, which names device
    and instruction, for lists that are not a correct schedule.
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
    local = stage_params.local
    sizes = [stages[s].last - stages[s].first for s in local]
    if stage_params.ranks != ranks or list(map(len, stage_params)) != sizes:
        raise InvalidInput(
            f"expected {sizes} parameters of stages on ranks {ranks}, which "
            f"compute them in this schedule, got {list(map(len, stage_params))} of "
            f"stages on {stage_params.ranks}; make them with "
            "place_params(params, stages, devices, stage_ranks(lists))"
        )
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
        return [load(self.step.X[slice(*self.bounds[micro])], self.first)]

    def targets(self, micro: int) -> list[Tensor]:
        return [load(self.step.y[slice(*self.bounds[micro])], self.last)]

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        B, params, first = self.B, self.stage_params[stage], 0
        (H,), outputs = xs, []
        with framework_errors(f"stage {stage}", H):
            for layer in self.stages[stage].layers:
                H = layer.forward(B, params[first : first + layer.params], H)
                outputs.append(H)
                first += layer.params
            if ys is not None:
                H = losses_of(B, H, ys[0], self.step.y).sum()
        return Run([H], outputs, B.backward, params)


def make_lists(
    schedule: str | Schedule | Lists,
    stages: int,
    micro_batches: int,
    group: Group,
    recompute: bool = False,
) -> tuple[Lists, list[int]]:
    """Return the lists of all ranks, and from them the rank of every stage.

    Raises `InvalidInput` for an unknown name, and for a number of stages that is not a
    multiple of the number of ranks (only lists may distribute them unevenly);
    `PlanError` for lists of another number of ranks, and for those that
    `verify_schedule` rejects.
    """
    if isinstance(schedule, (list, tuple)):
        lists: Lists = schedule
    else:
        p, v = group.size, stages // group.size
        if not v or stages % p:
            raise InvalidInput(
                f"expected as many stages as devices, or a multiple of it, got "
                f"{plural(stages, 'stage')} for {plural(p, 'device')}; cut with "
                "cut_stages(model, len(devices))"
            )
        if callable(schedule):
            lists = schedule(p, micro_batches, v)
        else:
            check_choice("schedule", schedule, SCHEDULES)
            lists = _cached_schedule(schedule, p, micro_batches, v, recompute)
    if len(lists) != group.size:
        raise PlanError(
            f"expected a list for each of {group.size} devices, got {len(lists)}; make "
            "the schedule for as many devices as there are"
        )
    return lists, list(_verified(tuple(map(tuple, lists)), stages, micro_batches))


@lru_cache(maxsize=64)  # every step of a run has the same lists
def _cached_schedule(name: str, p: int, m: int, v: int, recompute: bool) -> Lists:
    return SCHEDULES[name](p, m, v, _RECOMPUTED if recompute else None)


@lru_cache(maxsize=64)
def _verified(
    lists: Sequence[Sequence[AnyInstruction]], stages: int, micro_batches: int
) -> list[int]:
    verify_schedule(lists, stages, micro_batches)
    return stage_ranks(lists, stages)


def micro_bounds(examples: int, micro_batches: int) -> list[tuple[int, int]]:
    """Return the bounds of micro-batches, as even as possible."""
    check_count("micro_batches", micro_batches)
    if examples < micro_batches:
        raise InvalidInput(
            f"cannot split {plural(examples, 'example')} into {micro_batches} "
            f"micro-batches; use at least {micro_batches} examples or fewer of them"
        )
    return even_bounds(examples, micro_batches)
