"""A mesh: ranks on several axes, one for each parallelism strategy.

`Mesh(data=2, tensor=4)` has eight ranks. Those that differ in one coordinate alone are
a sub-group: along `tensor` there are two, of four ranks each. The axis named last
varies fastest, so its ranks are neighbors: put the axis that moves most bytes last. A
sub-group counts its ranks from 0; its messages are sent and reported with the ranks of
the whole group. Chapter: *composing*. Source: Narayanan et al. (2021).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..checks import MAX_RANKS, check_choice, check_count, check_list, check_same
from ..errors import InvalidInput, name_ranks
from ..plans.rounds import Round
from .group import Combine, Engine, Group, LocalEngine, Work, current_group, local_group


@dataclass(frozen=True)
class Subgroup(Group):
    """Some ranks of a group: `ranks` are their numbers there, in ascending order."""

    ranks: tuple[int, ...] = ()

    def to_global_ranks(self, rounds: Iterable[Round]) -> Iterator[Round]:
        return (renumber(this_round, self.ranks) for this_round in rounds)


class LocalPart(LocalEngine):
    """The engine of a sub-group in one process: rounds come with global ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out rounds in place; `data[i]` is the tensor of `ranks[i]`."""
        spread = [data[0]] * (self._ranks[-1] + 1)  # other ranks' places are not used
        for rank, x in zip(self._ranks, data, strict=True):
            spread[rank] = x
        super().exchange(spread, rounds, combine)

    def start(self, *call: Any) -> Work:
        return LocalEngine().start(*call)


def split_group(
    parts: Sequence[Sequence[int]], group: Group, names: Sequence[str] | None = None
) -> list[Subgroup]:
    """Make a sub-group of each of `parts`; return those that this process is in.

    `parts` are lists of the group's ranks, which ascend in each, and no rank is in two.
    In one process, all sub-groups are returned, in their order; in a group of
    processes, where every process must make the same call, at most one. `names`
    identify them in errors. Raises `InvalidInput` for ranks that are not the group's,
    for ranks of which another process has other parts, for a sub-group to be split
    again, and on an engine that has no sub-groups (Horovod).
    """
    if isinstance(group, Subgroup):
        raise InvalidInput(
            f"expected the group of all ranks, got a sub-group of "
            f"{name_ranks(list(group.ranks))}; split the whole group"
        )
    checked = _check_parts(parts, group.size)
    if names is None:
        names = [f"in the sub-group of {name_ranks(list(part))}" for part in checked]
    engine = group.engine
    if group.is_distributed:
        if not hasattr(engine, "part"):
            raise InvalidInput(
                "expected an engine that has sub-groups (shared_memory, torch or "
                f"paddle), got {engine.name}; start the processes with one of these"
            )
        texts = engine.allgather_text(json.dumps(checked))
        check_same(
            {rank: f"the parts {text}" for rank, text in enumerate(texts)},
            "the same parts on every rank",
            "split the group alike in every process",
        )
        pairs = [pair for pair in zip(checked, names, strict=True) if len(pair[0]) > 1]
        engine = engine.part([part for part, _ in pairs], [name for _, name in pairs])
    subgroups = []
    for part in checked:
        local = tuple(i for i, rank in enumerate(part) if rank in group.local_ranks)
        if local:
            is_local = len(local) == len(part)
            carrier: Engine = LocalPart(part) if is_local else engine
            subgroups.append(Subgroup(len(part), local, carrier, group.info, part))
    return subgroups


def alone(rank: int, group: Group) -> Subgroup:
    """Make the sub-group of one of this process's ranks."""
    return Subgroup(1, (0,), LocalPart((rank,)), group.info, (rank,))


def _check_parts(parts: Any, size: int) -> list[tuple[int, ...]]:
    """Return the parts as tuples of Python's integers."""
    checked = [
        tuple(
            check_count("rank", rank, min=0, max=size - 1)
            for rank in check_list("a part", part, "ranks")
        )
        for part in check_list("parts", parts, "lists of ranks")
    ]
    all_ranks = [rank for part in checked for rank in part]
    ascending = all(list(part) == sorted(part) for part in checked)
    if not ascending or len({*all_ranks}) < len(all_ranks):
        raise InvalidInput(
            f"expected ranks that ascend in each part, and each in one part at most, "
            f"got {checked}; sort them, or split the group once more"
        )
    return checked


@lru_cache(maxsize=4096)  # a training step repeats the same few rounds
def renumber(this_round: Round, ranks: tuple[int, ...]) -> Round:
    """Replace the ranks 0, 1, ... of a sub-group by global ranks, which ascend too."""
    global_ranks, (source, target, *rest) = np.asarray(ranks), this_round.columns
    return Round(global_ranks[source], global_ranks[target], *rest)


AXES = ("data", "tensor", "pipeline", "sequence", "expert")


class Mesh:
    """Ranks on axes, each with a size: `Mesh(pipeline=2, data=2, tensor=2)`.

    Without a group it is that of the processes, and outside a launch one of simulated
    devices. `axes` are the sizes by name, in order, and `ranks` is an array of the
    ranks with one dimension per axis. Every process must make the same mesh.
    Raises `InvalidInput` for an axis that is not in `AXES`, for sizes whose product is
    not the group's, and what `split_group` raises.

    >>> mesh = Mesh(data=2, tensor=3)
    >>> mesh.ranks_along("tensor"), mesh.ranks_along("data")
    ([(0, 1, 2), (3, 4, 5)], [(0, 3), (1, 4), (2, 5)])
    >>> mesh.coordinates(5)
    {'data': 1, 'tensor': 2}
    """

    def __init__(self, group: Group | None = None, /, **axes: int) -> None:
        self.axes = check_axes(axes)
        self.size = int(np.prod([*self.axes.values()], dtype=object))
        check_count("devices of a mesh", self.size, max=MAX_RANKS)
        if group is None:
            group = current_group.get() or local_group(self.size)
        self.group = group
        if self.size != group.size:
            product = " x ".join(f"{axis}={size}" for axis, size in self.axes.items())
            raise InvalidInput(
                f"expected axes whose product is the {group.size} devices of the "
                f"group, got {product} = {self.size}; change an axis, or use "
                f"{self.size} devices"
            )
        self.ranks = np.arange(self.size).reshape([*self.axes.values()])
        self._groups = {axis: self._split(axis) for axis in AXES}

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={n}' for axis, n in self.axes.items())})"

    def ranks_along(self, axis: str) -> list[tuple[int, ...]]:
        """Return the ranks of every sub-group along an axis (of size 1 if absent)."""
        check_choice("axis", axis, AXES)
        if axis not in self.axes:
            return [(rank,) for rank in range(self.size)]
        lines = np.moveaxis(self.ranks, [*self.axes].index(axis), -1)
        return [tuple(line.tolist()) for line in lines.reshape(-1, self.axes[axis])]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on each axis."""
        rank = check_count("rank", rank, min=0, max=self.size - 1)
        index = np.unravel_index(rank, self.ranks.shape)
        return {axis: int(i) for axis, i in zip(self.axes, index, strict=True)}

    def rank(self, **coordinates: int) -> int:
        """Return the rank at these coordinates; those of other axes are 0."""
        for axis, coordinate in coordinates.items():
            check_choice("axis", axis, AXES)
            last = self.axes.get(axis, 1) - 1
            check_count(f"coordinate on the axis {axis}", coordinate, min=0, max=last)
        return int(self.ranks[tuple(coordinates.get(axis, 0) for axis in self.axes)])

    def groups(self, axis: str) -> list[Subgroup]:
        """Return the sub-groups along an axis in which this process has ranks."""
        return self._groups[check_choice("axis", axis, AXES)]

    def group_of(self, axis: str, rank: int) -> Subgroup:
        """Return the sub-group along an axis of a rank, if this process is in it."""
        rank = check_count("rank", rank, min=0, max=self.size - 1)
        for group in self.groups(axis):
            if rank in group.ranks:
                return group
        raise InvalidInput(
            f"expected a rank whose sub-group along {axis} this process is in, got "
            f"rank {rank}; its own are {list(self.group.local_ranks)}"
        )

    def local(self, axis: str) -> Iterator[tuple[Subgroup, list[int]]]:
        """Yield the local sub-groups, each with the places of its ranks in a list.

        Such a list has one entry for each local rank of the mesh.
        """
        local = self.group.local_ranks
        for group in self.groups(axis):
            yield group, [local.index(group.ranks[i]) for i in group.local_ranks]

    def along(
        self,
        axis: str,
        collective: Callable[..., Any],
        data: Sequence[Any],
        **options: Any,
    ) -> list[Any]:
        """Call a collective in every sub-group along an axis.

        `data` has one tensor for each local rank of the whole mesh, and so has the
        returned list: what the collective returned for it, or None if it works in
        place. `mesh.along("data", allreduce, grads, op="mean")` averages along `data`.
        """
        local = self.group.local_ranks
        if len(check_list("data", data, "tensors, one per device")) != len(local):
            raise InvalidInput(
                f"expected one entry for each of this process's {len(local)} ranks of "
                f"the mesh, got {len(data)}; pass a list in rank order"
            )
        results: list[Any] = [None] * len(local)
        for group, places in self.local(axis):
            returned = collective([data[i] for i in places], group=group, **options)
            for i, result in zip(places, returned or [None] * len(places), strict=True):
                results[i] = result
        return results

    def _split(self, axis: str) -> list[Subgroup]:
        parts = self.ranks_along(axis)
        if self.axes.get(axis, 1) == 1:  # each rank alone: no communication
            return [alone(rank, self.group) for rank in self.group.local_ranks]
        names = [f"along {axis}, {name_ranks(list(part))}" for part in parts]
        return split_group(parts, self.group, names)


def check_axes(axes: dict[str, Any]) -> dict[str, int]:
    """Raise for an unknown axis, and for a size that is no positive number."""
    if not axes:
        raise InvalidInput(
            f"expected at least one axis, got none; name some of {', '.join(AXES)}, "
            "as in Mesh(data=2, tensor=2)"
        )
    for axis in axes:
        check_choice("axis", axis, AXES)
    return {
        axis: check_count(f"size of the axis {axis}", size, max=MAX_RANKS)
        for axis, size in axes.items()
    }
