"""Sub-groups: some ranks of a group, with messages and collectives of their own.

A sub-group counts its ranks from 0. What it moves is told, and sent, in the numbers of
the whole group, so a ledger sees which links it uses. In one process they are
simulated; across processes the engine makes them, on every rank alike.
Chapter: *composing*.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..checks import check_count, check_kind, check_list, check_same
from ..errors import InvalidInput, name_ranks
from ..plans.rounds import Round
from .group import Combine, Engine, Group, LocalEngine, Work


@dataclass(frozen=True)
class Subgroup(Group):
    """Some ranks of a group: `ranks` are their numbers there, in ascending order."""

    ranks: tuple[int, ...] = ()

    def to_global_ranks(self, rounds: Iterable[Round]) -> Iterator[Round]:
        """Give rounds in the numbers of all ranks."""
        return (renumber(this_round, self.ranks) for this_round in rounds)


class LocalPart(LocalEngine):
    """The engine of a sub-group in one process: rounds come in the whole's numbers."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out rounds in place; `data[i]` is the tensor of `ranks[i]`."""
        spread = [data[0]] * (self._ranks[-1] + 1)  # the others' places are not used
        for rank, x in zip(self._ranks, data, strict=True):
            spread[rank] = x
        super().exchange(spread, rounds, combine)

    def start(self, *call: Any) -> Work:
        """Begin a collective of these tensors alone."""
        return LocalEngine().start(*call)


def split_group(
    parts: Sequence[Sequence[int]], group: Group, names: Sequence[str] | None = None
) -> list[Subgroup]:
    """Make a sub-group of each of `parts`, lists of the group's ranks; give ours.

    The ranks of a part ascend, and no rank is in two. In one process all sub-groups
    come back, in their order; in a group of processes, where every process must call
    this alike, the one that this process belongs to, or none. `names` call them in
    errors. Raises `InvalidInput` for ranks that are not the group's, for ranks of which
    another process has other parts, for a sub-group to be split again, and on an engine
    that has no sub-groups (Horovod).
    """
    check_kind("group", group, Group, "a group of ranks")
    if isinstance(group, Subgroup):
        raise InvalidInput(
            f"expected the group of all ranks, got a sub-group of "
            f"{name_ranks(list(group.ranks))}; split the whole group"
        )
    cut = _check_parts(parts, group.size)
    if names is None:
        names = [f"in the sub-group of {name_ranks(list(part))}" for part in cut]
    engine = group.engine
    if group.is_distributed:
        if not hasattr(engine, "part"):  # it has no sub-groups
            raise InvalidInput(
                "expected an engine that has sub-groups (shared_memory, torch or "
                f"paddle), got {engine.name}; start the processes with one of these"
            )
        told = engine.allgather_text(json.dumps(cut))
        check_same(
            {rank: f"the parts {text}" for rank, text in enumerate(told)},
            "the same parts on every rank",
            "split the group alike in every process",
        )
        talking = [i for i, part in enumerate(cut) if len(part) > 1]
        engine = engine.part([cut[i] for i in talking], [names[i] for i in talking])
    found = []
    for part in cut:
        local = tuple(i for i, rank in enumerate(part) if rank in group.local_ranks)
        if local:
            here = len(local) == len(part)
            mine: Engine = LocalPart(part) if here else engine
            found.append(Subgroup(len(part), local, mine, group.info, part))
    return found


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
    every = [rank for part in checked for rank in part]
    ascending = all(list(part) == sorted(part) for part in checked)
    if not ascending or len({*every}) < len(every):
        raise InvalidInput(
            f"expected ranks that ascend in each part, and each in one part at most, "
            f"got {checked}; sort them, or split the group once more"
        )
    return checked


@lru_cache(maxsize=4096)  # a training step repeats the same few rounds
def renumber(this_round: Round, ranks: tuple[int, ...]) -> Round:
    """Put the ranks' numbers in the whole in place of 0, 1, ...; they ascend too."""
    whole, (source, target, *rest) = np.asarray(ranks), this_round.columns
    return Round(whole[source], whole[target], *rest)
