"""Cut a network into stages, and put their parameters where they are computed.

A pipeline runs at the pace of its slowest stage, so a good cut gives all stages the
same work. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor
from ...checks import check_choice, check_count, check_lists
from ...comm.collectives import broadcast
from ...comm.group import Group, current_group, group_for
from ...comm.split import load
from ...errors import InvalidInput, plural
from ...models import get_model
from ...models.model import Layer, Model
from ...plans.rounds import even_bounds


class Stage(NamedTuple):
    """Neighboring layers, and which of the model's parameters are theirs."""

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
    """Find neighboring groups whose most expensive one is as cheap as possible.

    Of several such cuts, take the one whose groups are most alike.
    """
    sums = [0.0, *accumulate(costs)]

    @cache
    def best(last: int, groups: int) -> tuple[float, float, tuple[int, ...]]:
        """Cut layers 0 to last: the largest cost, the sum of squares, the edges."""
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

    Stage s lies on rank `ranks[s]`, as `stage_ranks(lists)` returns them for a
    schedule; without `ranks` on rank s mod p. Returns one list for each stage of this
    process's ranks, in order. Raises `InvalidInput` for stages that do not distribute
    evenly over s mod p, for ranks that do not fit, and for a number of parameters that
    is not the stages'.
    """
    group = group_for(len(devices), group)
    if ranks is None:
        check_shares(len(stages), group)
        ranks = [s % group.size for s in range(len(stages))]
    elif len(ranks) != len(stages) or set(ranks) != set(range(group.size)):
        raise InvalidInput(
            f"expected a rank from 0 to {group.size - 1} for each of {len(stages)} "
            f"stages, and each rank at least once, got {list(ranks)}; take them from a "
            "schedule with stage_ranks(lists)"
        )
    if len(params) != stages[-1].last:
        raise InvalidInput(
            f"expected the {stages[-1].last} parameters of the model that was cut, got "
            f"{len(params)}"
        )
    placed = StageParams([], ranks)
    for s in local_stages(ranks, group):
        device = devices[group.local_ranks.index(ranks[s])]
        placed.append(
            [load(p, device) for p in params[stages[s].first : stages[s].last]]
        )
        for p in placed[-1]:
            backend_of(p).attach_grad(p)
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
    check_lists("stage_params", stage_params, len(stage_params), "stage")
    group = current_group.get() if group is None else group
    if group is None or not group.is_distributed:
        return [backend_of(p).copy_to(p, device) for mine in stage_params for p in mine]
    B = backend_of(stage_params[0][0])
    ranks = ranks_of(stage_params, len(stage_params) * group.size, group)
    forms = [[[list(p.shape), B.dtype_of(p)] for p in mine] for mine in stage_params]
    texts = group.engine.allgather_text(json.dumps(forms))
    forms_by_rank = [json.loads(text) for text in texts]
    local, gathered = local_stages(ranks, group), []
    for stage, owner in enumerate(ranks):
        for i, (shape, dtype) in enumerate(forms_by_rank[owner].pop(0)):
            whole = B.zeros(shape, dtype, device)
            if stage in local:
                whole = B.copy_to(stage_params[local.index(stage)][i], device)
            broadcast([whole], owner, group)
            gathered.append(whole)
    return gathered


def ranks_of(
    stage_params: Sequence[Sequence[Tensor]], stages: int, group: Group
) -> list[int]:
    """Return the ranks of all stages: as placed, or s mod p for other lists."""
    if isinstance(stage_params, StageParams):
        return stage_params.ranks
    return [s % group.size for s in range(stages)]


def local_stages(ranks: Sequence[int], group: Group) -> list[int]:
    """Return the stages of this process's ranks, in order."""
    return [s for s, rank in enumerate(ranks) if rank in group.local_ranks]


def check_shares(stages: int, group: Group) -> None:
    """Refuse stages that do not give every rank the same number of them."""
    if not stages or stages % group.size:
        raise InvalidInput(
            f"expected as many stages as devices, or a multiple of it, got "
            f"{plural(stages, 'stage')} for {plural(group.size, 'device')}; cut with "
            "cut_stages(model, len(devices))"
        )
