"""Placement on a mesh: each rank holds its shards of the layers of its stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_count, check_params
from ..comm.collectives import broadcast
from ..comm.group import group_for
from ..comm.mesh import Mesh, Subgroup
from ..errors import InvalidInput, plural
from ..models.tensor_parallel import get_split
from ..models.tensor_parallel.layers import REPLICATED, ShardSpec, SplitModel
from ..plans.rounds import even_bounds
from .tensor import AnyModel, gather_params, split_params


class Stage(NamedTuple):
    """Neighboring layers, and the location of their parameters."""

    model: SplitModel  # of these layers alone
    rank: int  # along `pipeline`
    first: int  # the number of its first parameter in the model
    own: int  # and in the list of a rank that holds the stage


class MeshParams(list[list[Tensor]]):
    """One list of shards for each local rank; from `place_on_mesh`."""

    def __init__(
        self, parts: Iterable[list[Tensor]], mesh: Mesh, model: SplitModel,
        stages: Sequence[Stage], zero: int, shapes: Sequence[tuple[int, ...]],
    ) -> None:  # fmt: skip
        super().__init__(parts)
        self.mesh, self.model, self.stages = mesh, model, list(stages)
        self.zero, self.shapes = zero, list(shapes)

    def like(self, parts: Iterable[Sequence[Tensor]]) -> MeshParams:
        """Wrap tensors of the same shapes with this placement."""
        return MeshParams(
            map(list, parts), self.mesh, self.model, self.stages, self.zero, self.shapes
        )

    def of_stage(self, i: int, stage: Stage) -> list[Tensor]:
        """Return the tensors of a stage that the i-th local rank holds."""
        return self[i][stage.own : stage.own + len(stage.model.specs)]

    def parts(self) -> list[list[Tensor]]:
        """Return the tensors that each local rank's optimizer updates.

        With ZeRO 1 they are flat copies.
        """
        if not self.zero:
            return [*self]
        replicas, parts = self.mesh.axes.get("data", 1), []
        for rank, params in zip(self.mesh.group.local_ranks, self, strict=True):
            place = self.mesh.coordinates(rank).get("data", 0)
            parts.append([_copy_part(p, replicas, place) for p in params])
        return parts


def place_on_mesh(
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    mesh: Mesh,
    model: AnyModel = "transformer",
    *,
    stages: int | None = None,
    zero: int = 0,
) -> MeshParams:
    """Copy to every device of a mesh its shards of its stages' parameters.

    Stage s is at s mod p along `pipeline`, of size p; there are p `stages` if not
    given, neighboring layers as even as possible, and more for the schedule
    interleaved. Along `tensor` each layer is split as `split_params` does, along
    `expert` the experts are distributed, and along `data` and `sequence` all are
    replicated; with `zero=1` the optimizer's state, of `placed.parts()`, is sharded
    along `data`. Raises `InvalidInput` for a model without a split version, for more
    stages than layers or no multiple of p, for what does not divide, and for an axis
    longer than 1 along which the model has nothing to split: `sequence` where there are
    no tokens, `expert` where there are no experts.
    """
    group_for(len(devices), mesh.group)  # raises for another number of devices
    hint = "on a mesh only the optimizer's state can be sharded"
    zero = check_count("zero", zero, min=0, max=1, hint=hint)
    split = get_split(model)
    _check_axes(mesh, split)
    check_params(params, len(split.specs))
    cut = cut_stages(split, mesh.axes.get("pipeline", 1), stages)
    placed: list[list[Tensor]] = [[] for _ in devices]
    for stage in cut:
        last = stage.first + len(stage.model.specs)
        full: dict[int, Sequence[Tensor]] = {}  # but for remote experts
        for group, places in of_stage(mesh, stage, "expert"):
            part = params[stage.first : last]
            if group.size > 1:
                targets = [backend_of(part[0]).device_of(part[0])] * len(places)
                shards = split_params(part, targets, by_experts(stage.model), group)
                full |= zip(places, shards, strict=True)
            else:
                full |= dict.fromkeys(places, part)
        for group, places in of_stage(mesh, stage):
            targets = [devices[i] for i in places]
            shards = split_params(full[places[0]], targets, stage.model, group)
            for i, shard in zip(places, shards, strict=True):
                placed[i] += shard
    shapes = [tuple(int(extent) for extent in p.shape) for p in params]
    return MeshParams(placed, mesh, split, cut, zero, shapes)


def gather_from_mesh(placed: MeshParams) -> list[list[Tensor]]:
    """Return the unsharded parameters for every local rank, from its own replica."""
    mesh = placed.mesh
    # For each local rank, the full parameters by their numbers.
    by_number: list[dict[int, Tensor]] = [{} for _ in placed]
    for stage in placed.stages:
        held: dict[int, list[Tensor]] = {}
        for group, places in of_stage(mesh, stage):
            shards = [placed.of_stage(i, stage) for i in places]
            joined = gather_params(shards, stage.model, group)
            held |= zip(places, joined, strict=True)
        for group, places in of_stage(mesh, stage, "expert"):
            joined = [held[i] for i in places]
            if group.size > 1:
                joined = gather_params(joined, by_experts(stage.model), group)
            for i, params in zip(places, joined, strict=True):
                by_number[i].update(enumerate(params, stage.first))
    like = placed[0][0]
    B = backend_of(like)
    for stage in placed.stages:
        for number in range(stage.first, stage.first + len(stage.model.specs)):
            for i, full in enumerate(by_number):
                if number not in full:
                    device = B.device_of(placed[i][0])
                    empty = B.zeros(placed.shapes[number], B.dtype_of(like), device)
                    full[number] = empty
            copies = [full[number] for full in by_number]
            with B.pause():
                mesh.along("pipeline", broadcast, copies, root=stage.rank)
    return [[full[number] for number in sorted(full)] for full in by_number]


def of_stage(
    mesh: Mesh, stage: Stage, axis: str = "tensor"
) -> Iterator[tuple[Subgroup, list[int]]]:
    """Yield the sub-groups along an axis that hold a stage, as `Mesh.local` does."""
    for group, places in mesh.local(axis):
        if mesh.coordinates(group.ranks[0]).get("pipeline", 0) == stage.rank:
            yield group, places


def by_experts(model: SplitModel) -> SplitModel:
    """Return the model split along `expert` alone."""
    experts = ShardSpec(0, "experts")
    layers = [
        layer._replace(
            specs=tuple(experts if spec.experts else REPLICATED for spec in layer.specs)
        )
        for layer in model.layers
    ]
    return model._replace(layers=tuple(layers))


def _check_axes(mesh: Mesh, model: SplitModel) -> None:
    """Raise for an axis along which the model has nothing to split."""
    lacking = {}
    if not model.whole.vocabulary:
        lacking["sequence"] = "tokens; leave it out, or use a transformer"
    if not any(spec.experts for _, spec in model.specs):
        lacking["expert"] = "experts; leave it out, or use switch_transformer"
    for axis, missing in lacking.items():
        if mesh.axes.get(axis, 1) > 1:
            raise InvalidInput(
                f"expected axes along which {model.name} can be split, got {mesh!r}: "
                f"no layer is split along {axis}, because it has no {missing}"
            )


def cut_stages(model: SplitModel, p: int, stages: int | None = None) -> list[Stage]:
    """Cut a split model's layers into even stages, stage s at s mod p."""
    count = p if stages is None else check_count("stages", stages)
    if count % p or count > len(model.layers):
        raise InvalidInput(
            f"cannot cut the {len(model.layers)} layers of {model.name!r} into "
            f"{plural(count, 'stage')} for {plural(p, 'rank')} along pipeline; use a "
            f"multiple of {p}, and at most {len(model.layers)}"
        )
    cut, first, counts = [], 0, [0] * p
    for s, (a, b) in enumerate(even_bounds(len(model.layers), count)):
        part = model._replace(layers=model.layers[a:b])
        cut.append(Stage(part, s % p, first, counts[s % p]))
        first += len(part.specs)
        counts[s % p] += len(part.specs)
    return cut


def _copy_part(p: Tensor, replicas: int, place: int) -> Tensor:
    B = backend_of(p)
    with B.pause():
        part = B.read(p, *even_bounds(element_count(p), replicas)[place])
        return B.copy_to(part, B.device_of(p))
