"""Cut a network into stages: by the number of layers, or so that no stage is slow.

A pipeline runs at the pace of its slowest stage, so a good cut gives all stages the
same work. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from ...checks import check_choice, check_count, check_list, check_number
from ...errors import InvalidInput, plural
from ...models import get_model
from ...models.model import Layer, Model
from ...plans.rounds import even_bounds


class Stage(NamedTuple):
    """Neighbouring layers, and which of the model's parameters are theirs."""

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
    """Cut the model's layers into `stages` neighbouring groups, none of them empty.

    by `layers`: as many layers in each as evenly as possible. by `cost`: so that the
    dearest stage is as cheap as possible; `costs` has one number a layer, for example
    from `layer_seconds`. Raises `InvalidInput` for a model that is no sequence of
    layers, for more stages than layers and for a stage without parameters.
    """
    model = get_model(model)
    count = len(model.layers)
    if not count:
        raise InvalidInput(
            f"cannot cut the model {model.name!r} into stages: it is not written as a "
            "sequence of layers (batch normalisation that talks in mid-forward cannot "
            "be); use a model with `layers`, such as lenet or deep_mlp"
        )
    check_count("stages", stages)
    check_choice("by", by, ("layers", "cost"))
    if costs is not None:
        _check_costs(costs, count)
    if stages > count:
        raise InvalidInput(
            f"cannot cut the {plural(count, 'layer')} of {model.name!r} into "
            f"{stages} stages; use at most {plural(count, 'stage')} or a deeper model"
        )
    if by == "layers":
        bounds = even_bounds(count, stages)
    else:
        bounds = _balanced(_check_costs(costs, count), stages)
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
    """Find neighbouring groups whose dearest one is as cheap as possible.

    Of several such cuts, take the one whose groups are most alike.
    """
    sums = [0.0, *accumulate(costs)]

    @cache
    def best(last: int, groups: int) -> tuple[float, float, tuple[int, ...]]:
        """Cut layers 0 to last: the dearest group, the sum of squares, the edges."""
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


def _check_costs(costs: Any, layers: int) -> Sequence[float]:
    hint = "measure them with layer_seconds(model, params, X)"
    check_list("costs", costs, "costs, one a layer", hint=hint)
    if len(costs) != layers:
        raise InvalidInput(
            f"expected one cost for each of {layers} layers, got {len(costs)}; {hint}"
        )
    return [check_number("cost", cost, min=0, hint=hint) for cost in costs]
