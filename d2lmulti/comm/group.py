"""A group is the set of ranks that take part, and the engine that joins them.

In one process every rank is local; in a run of n processes each process holds one. An
engine carries bytes between ranks: below stand its contract and the engine of one
process. Only the launcher sets the current group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import Tensor
from ..checks import MAX_INDEX, MAX_RANKS, check_count, invalid
from ..errors import InvalidInput
from ..plans.rounds import Round, make_round

Combine = Literal["sum", "max"]  # what `add` in a round means


class Work:
    """A collective that may still be in progress; `wait` ends it."""

    def __init__(self, end: Callable[[], Any] | None = None) -> None:
        self._end, self._result = end, None

    def wait(self) -> Any:
        """Wait until it has finished; return its result, if that is not in place."""
        if self._end is not None:
            end, self._end = self._end, None
            self._result = end()
        return self._result


class Engine(Protocol):
    """How the tensors of a group's ranks are exchanged."""

    name: str
    point_to_point: bool  # whether `exchange` works: plans run on it
    native: Collection[str]  # the collectives that the engine itself has
    reducible: Collection[str] | None  # the dtypes that its all-reduce takes; None: all

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call, in words that all ranks share."""

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Run the rounds on `data`, one tensor per local rank, in place.

        The function takes a whole round, not a `send`: an engine with blocking sends
        must order a round's pairs itself, or a ring of senders waits forever.
        """

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin a collective named in `native`.

        All-reduce and broadcast work in place; reduce-scatter (of the flat sum, by
        `even_bounds`) and all-gather (of rows) make new tensors.
        """

    def allgather_text(self, text: str) -> list[str]:
        """Return every rank's short text on every rank, in rank order; slow."""

    def close(self) -> None:
        """Release what the engine holds."""


class LocalEngine:
    """The engine of simulated devices and of several GPUs in one process."""

    name = "local"
    point_to_point = True
    native: Collection[str] = ("allreduce",)
    reducible: Collection[str] | None = None

    def begin(self, call: str) -> None:
        """Do nothing: no other process waits."""

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Run the rounds in place; `data[i]` is the tensor of rank i."""
        memories, shortest = _memories(data)
        for this_round in rounds:
            if this_round.reach <= shortest:
                _exchange_in_numpy(memories, this_round, combine)
            else:
                _exchange_tensors(data, this_round, combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Sum (or take the maximum) on a root, and copy it to all ranks."""
        size = element_count(data[0])
        others = [rank for rank in range(len(data)) if rank != root]
        there = make_round(others, root, 0, size, add=True)
        back = make_round(root, others, 0, size, add=False)
        self.exchange(data, [there, back], op)
        return Work()

    def allgather_text(self, text: str) -> list[str]:
        """Return the text: one process speaks for all its ranks."""
        return [text]

    def close(self) -> None:
        """Do nothing."""


def _exchange_tensors(
    data: Sequence[Tensor], this_round: Round, combine: Combine
) -> None:
    """Run a round with the framework's own operations."""
    B = backend_of(data[0])
    parts = [B.read(data[s], a.start, a.stop) for s, a, _, _, _ in this_round.parts]
    for i in this_round.overtaken:  # a view would show what is written before its turn
        parts[i] = B.copy_to(parts[i], B.device_of(parts[i]))
    for (_, _, target, to, add), part in zip(this_round.parts, parts, strict=True):
        if add and combine == "max":
            B.maximum_(data[target], to.start, to.stop, part)
        else:
            B.write_(data[target], to.start, to.stop, part, add=add)


# -- the same in NumPy, where it reaches the memory of all ranks --------------------
# On one thread, frameworks take up to a third longer to add or copy the same bytes.


def _memories(data: Sequence[Tensor]) -> tuple[list[Any], int]:
    """View all tensors as flat arrays; return them and the length of the shortest.

    That is -1, shorter than any round reaches, where NumPy cannot compute.
    """
    B, memories, shortest = backend_of(data[0]), [], MAX_INDEX
    for x in data:
        memory: Any = B.memory(x)
        memories.append(memory)
        plain = memory is not None and memory.dtype.kind != "V"  # not bfloat16
        shortest = min(shortest, memory.size) if plain else -1
    return memories, shortest


def _exchange_in_numpy(
    memories: Sequence[Any], this_round: Round, combine: Combine
) -> None:
    merge = np.maximum if combine == "max" else np.add
    rows, early = this_round.parts, this_round.overtaken
    kept = {}
    for i in early:
        sender, there, *_ = rows[i]
        kept[i] = memories[sender][there].copy()
    for i, (sender, there, receiver, here, add) in enumerate(rows):
        source = kept[i] if i in kept else memories[sender][there]
        if add:
            part = memories[receiver][here]
            merge(part, source, out=part)
        else:
            memories[receiver][here] = source


@dataclass(frozen=True)
class Group:
    """`size` ranks, of which `local_ranks` live in this process."""

    size: int
    local_ranks: tuple[int, ...]
    engine: Engine
    info: Any = None  # where processes share it: the `ProcessInfo` of this one

    @cached_property
    def is_distributed(self) -> bool:
        """Whether other processes hold some of the ranks."""
        return len(self.local_ranks) < self.size

    @property
    def leader(self) -> bool:
        """Whether this process holds rank 0, which speaks and writes for all."""
        return 0 in self.local_ranks

    def to_global_ranks(self, rounds: Iterable[Round]) -> Iterable[Round]:
        """Return rounds with the global ranks, of which a sub-group has some."""
        return rounds


current_group: ContextVar[Group | None] = ContextVar("current_group", default=None)


def local_group(size: int) -> Group:
    """Make a group of `size` ranks that all live in this process."""
    return _local(check_count("size", size, max=MAX_RANKS))


@lru_cache(maxsize=16)
def _local(size: int) -> Group:
    return Group(size, tuple(range(size)), LocalEngine())


def group_for(count: int, group: Group | None = None) -> Group:
    """Return the group in which this process holds `count` ranks.

    Order: the argument, the current group, a one-process group of `count` ranks.
    Raises `InvalidInput` when the group has another number of local ranks.
    """
    if group is None:
        group = current_group.get() or _local(count)
    if not isinstance(group, Group):
        raise invalid("a group of ranks as group", group, "leave it out")
    if len(group.local_ranks) != count:
        raise InvalidInput(
            f"expected one entry for each of this process's {len(group.local_ranks)} "
            f"ranks, got {count}; pass a list in rank order, one entry a rank"
        )
    return group
