"""A group is the set of ranks that take part, and the engine that joins them.

In one process every rank is local; in a run of n processes each process holds one. An
engine carries bytes between ranks: below stand its contract, which those of `engines/`
keep too, and the engine of one process. The current group is set by the launcher only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from ..backends.protocol import Backend, Tensor, backend_of, element_count
from ..checks import MAX_INDEX, MAX_RANKS, check_count, check_native, invalid
from ..errors import InvalidInput
from ..plans.rounds import Round, make_round

Combine = Literal["sum", "max"]  # what `add` in a round means


class Work:
    """A collective that may still be under way; `wait` ends it."""

    def __init__(self, end: Callable[[], Any] | None = None) -> None:
        self._end, self._made = end, None

    def wait(self) -> Any:
        """Wait until it is done; give what it made, if that is not in place."""
        if self._end is not None:
            end, self._end = self._end, None
            self._made = end()
        return self._made


class Engine(Protocol):
    """How the tensors of a group's ranks reach each other."""

    name: str
    point_to_point: bool  # whether `exchange` works: plans run on it
    native: Collection[str]  # the collectives that the engine itself has
    reducible: Collection[str] | None  # the dtypes that its all-reduce takes; None: all

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call, in words that all ranks share."""

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out rounds, one by one, on `data`, one tensor a local rank, in place.

        The verb is a whole round, not `send`: an engine with blocking sends must
        order a round's pairs itself, or a ring of senders waits for ever.
        """

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin a collective named in `native`.

        All-reduce and broadcast work in place; reduce-scatter (of the flat sum, by
        `even_bounds`) and all-gather (of rows) make new tensors.
        """

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order; slow."""

    def close(self) -> None:
        """Let go of what the engine holds."""


class LocalEngine:
    """The engine of simulated devices and of several GPUs in one process.

    Where NumPy reaches the memory of all devices, it does the work itself: on one
    thread, frameworks take up to a third longer to add or copy the same bytes.
    """

    name = "local"
    point_to_point = True
    native: Collection[str] = ("allreduce",)
    reducible: Collection[str] | None = None

    def begin(self, call: str) -> None:
        """Do nothing: in one process nobody waits."""

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out rounds in place; `data[i]` is the tensor of rank i."""
        B, merge = backend_of(data[0]), np.maximum if combine == "max" else np.add
        memories: list[Any] = []
        reach = MAX_INDEX
        for x in data:
            memory: Any = B.memory(x)
            memories.append(memory)
            plain = memory is not None and memory.dtype.kind != "V"  # not bfloat16
            reach = min(reach, memory.size) if plain else -1
        for this_round in rounds:
            if this_round.reach > reach:
                _exchange_tensors(B, data, this_round, combine)
                continue
            rows, early = this_round.parts, this_round.overtaken
            kept = {i: memories[rows[i][0]][rows[i][1]].copy() for i in early}
            for i, (sender, there, receiver, here, add) in enumerate(rows):
                source = kept[i] if i in kept else memories[sender][there]
                if add:
                    part = memories[receiver][here]
                    merge(part, source, out=part)
                else:
                    memories[receiver][here] = source

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Sum (or take the maximum) on a root, the plain way, and copy it to all."""
        check_native(self, what)
        size = element_count(data[0])
        others = [rank for rank in range(len(data)) if rank != root]
        there = make_round(others, root, 0, size, add=True)
        back = make_round(root, others, 0, size, add=False)
        self.exchange(data, [there, back], op)
        return Work()

    def allgather_text(self, text: str) -> list[str]:
        """Give back the text: one process speaks for all its ranks."""
        return [text]

    def close(self) -> None:
        """Do nothing."""


def _exchange_tensors(
    B: Backend, data: Sequence[Tensor], this_round: Round, combine: Combine
) -> None:
    """Let the framework carry out a round; it also says what is wrong with one."""
    parts = [B.read(data[s], a.start, a.stop) for s, a, _, _, _ in this_round.parts]
    for i in this_round.overtaken:  # a view would show what is written before its turn
        parts[i] = B.copy_to(parts[i], B.device_of(parts[i]))
    for (_, _, target, to, add), part in zip(this_round.parts, parts, strict=True):
        if add and combine == "max":
            B.maximum_(data[target], to.start, to.stop, part)
        else:
            B.write_(data[target], to.start, to.stop, part, add=add)


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
        """Give rounds in the numbers of all ranks, of which a sub-group has some."""
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
