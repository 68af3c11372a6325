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
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..checks import check_count, check_kind, check_list, check_same
from ..errors import InvalidInput, name_ranks
from ..plans.rounds import Round
from .group import Combine, Engine, Group, LocalEngine, Work


@runtime_checkable
class Divisible(Protocol):
    """An engine that has sub-groups."""

    def part(self, parts: Sequence[Sequence[int]], names: Sequence[str]) -> Engine:
        """Make sub-groups of these ranks; give that of this rank, or the whole.

        Every rank of the group makes this call, with the same `parts`.
        """


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
        self._ranks, self._whole = ranks, LocalEngine()

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out rounds in place; `data[i]` is the tensor of `ranks[i]`."""
        spread = [data[0]] * (self._ranks[-1] + 1)  # the others' places are not used
        for rank, x in zip(self._ranks, data, strict=True):
            spread[rank] = x
        self._whole.exchange(spread, rounds, combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Sum (or take the maximum) on a root, the plain way, and copy it to all."""
        return self._whole.start(what, data, op, root)


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
        if not isinstance(engine, Divisible):
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
    """Give the parts back as tuples of Python's integers."""
    cut = []
    for part in check_list("parts", parts, "lists of ranks"):
        check_list("a part", part, "ranks", hint="pass [[0, 1], [2, 3]]")
        ranks = [check_count("rank", r, min=0, max=size - 1) for r in part]
        if ranks != sorted(set(ranks)):
            raise InvalidInput(
                f"expected ranks that ascend in each part, got {ranks}; sort them, and "
                "name each once"
            )
        cut.append(tuple(ranks))
    every = [rank for part in cut for rank in part]
    if twice := sorted({rank for rank in every if every.count(rank) > 1}):
        raise InvalidInput(
            f"expected parts that have no rank in common, got {name_ranks(twice)} more "
            "than once; split the group once more for other parts"
        )
    return cut


@lru_cache(maxsize=4096)  # a training step repeats the same few rounds
def renumber(this_round: Round, ranks: tuple[int, ...]) -> Round:
    """Put the ranks' numbers in the whole in place of 0, 1, ...; they ascend too."""
    whole, (source, target, *rest) = np.asarray(ranks), this_round.columns
    return Round(whole[source], whole[target], *rest)
