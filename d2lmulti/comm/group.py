"""A group of ranks, the engine that joins them, and their all-reduce.

In one process every rank is local; in a run of n processes each process holds one. An
engine moves bytes between ranks; its contract and the engine of one process are below.
Only the launcher sets the current group. `data` always holds one tensor per
local rank, in rank order: a tensor's position is its rank. Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Protocol

import numpy as np

from ..backends import backend_of, element_count, itemsize, nbytes
from ..backends.protocol import Tensor
from ..checks import (
    MAX_INDEX,
    MAX_RANKS,
    check_choice,
    check_count,
    check_data,
    check_native,
    invalid,
)
from ..errors import InvalidInput
from ..events import notify, observers
from ..plans.allreduce import ALLREDUCE, choose_allreduce
from ..plans.rounds import Plan, Round, make_round

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
        """Record this rank's next call, in words that are the same on all ranks."""

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Run the rounds on `data`, one tensor per local rank, in place.

        The argument is a whole round instead of one message: an engine with blocking
        sends must order a round's messages itself, or a ring of senders deadlocks.
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
            if this_round.min_length <= shortest:
                _exchange_in_numpy(memories, this_round, combine)
            else:
                _exchange_tensors(data, this_round, combine)

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Sum (or take the maximum) on a root, and copy it to all ranks."""
        size = element_count(data[0])
        others = [rank for rank in range(len(data)) if rank != root]
        to_root = make_round(others, root, 0, size, add=True)
        from_root = make_round(root, others, 0, size, add=False)
        self.exchange(data, [to_root, from_root], op)
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
    rows = this_round.slices
    parts = [B.read(data[s], a.start, a.stop) for s, a, _, _, _ in rows]
    for i in this_round.read_after_write:  # these may be views
        parts[i] = B.copy_to(parts[i], B.device_of(parts[i]))
    for (_, _, target, written, add), part in zip(rows, parts, strict=True):
        if add and combine == "max":
            B.maximum_(data[target], written.start, written.stop, part)
        else:
            B.write_(data[target], written.start, written.stop, part, add=add)


# -- the same in NumPy, where it can access the memory of all ranks -----------------
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
    rows, copies = this_round.slices, {}
    for i in this_round.read_after_write:
        sender, read, *_ = rows[i]
        copies[i] = memories[sender][read].copy()
    for i, (sender, read, receiver, written, add) in enumerate(rows):
        source = copies[i] if i in copies else memories[sender][read]
        if add:
            part = memories[receiver][written]
            merge(part, source, out=part)
        else:
            memories[receiver][written] = source


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
            f"ranks, got {count}; pass a list in rank order, one entry per rank"
        )
    return group


Op = Literal["sum", "mean", "max"]


def allreduce(
    data: Sequence[Tensor],
    algorithm: str | Plan = "star",
    group: Group | None = None,
    op: Op = "sum",
) -> None:
    """Replace every entry of `data` by the sum of all ranks' entries, in place.

    The entries have one shape and dtype. Every entry is overwritten in its own storage,
    also that of a gradient, so all replicas see the sum (rebinding `data[i]` would not
    change theirs), and all end with the same bits; `recursive_doubling` alone may leave
    a maximum of 0 and -0, or a NaN, in two forms. `algorithm` is a name in `ALLREDUCE`,
    `auto` (see `choose_allreduce`), `native` for the engine's own, or a plan of your
    own; `op` is sum, mean, or max. Raises `InvalidInput` for entries that differ in
    shape or dtype, an entry given twice, an unknown algorithm or op, a mean of
    integers, and for `native` where the engine has none, or none for the dtype.

    Sums are computed in the dtype itself. In bfloat16, with 8 significant bits, each
    addition rounds by up to 1/512 of the partial sum; 1/256 added to 1 is lost. Where
    that matters, sum in float32.
    """
    check_algorithm(algorithm)
    check_data(data, op)
    start_allreduce(data, algorithm, group_for(len(data), group), op).wait()


def check_algorithm(algorithm: str | Plan) -> None:
    """Raise unless `algorithm` is the name of an all-reduce or a plan."""
    if not callable(algorithm):
        check_choice("algorithm", algorithm, (*ALLREDUCE, "auto", "native"))


def start_allreduce(
    data: Sequence[Tensor], algorithm: str | Plan, group: Group, op: Op = "sum"
) -> Work:
    """Begin an `allreduce` of tensors that have been checked already.

    The engine's own runs until `wait` ends it; a plan has finished on return.
    """
    length = element_count(data[0])
    if algorithm == "auto":
        algorithm = choose_allreduce(group.size, nbytes(data[0]))
    work = Work()
    if algorithm == "native":
        # We cannot see what the engine sends; a ring, the lower bound, is reported.
        rounds: Iterable[Round] = ALLREDUCE["ring"](group.size, length)
        work = start_native("allreduce", data, rounds, group, op)
    else:
        if callable(algorithm):
            rounds = algorithm(group.size, length)
        else:
            rounds = cached_plan(algorithm, group.size, length)
        exchange(data, rounds, group, op, f"{op} all-reduce")
    if op != "mean":
        return work

    def end() -> None:
        work.wait()
        divide_(data, group)

    return Work(end)


@lru_cache(maxsize=256)  # a training step repeats the same few plans
def cached_plan(algorithm: str, ranks: int, length: int) -> list[Round]:
    """Return the rounds of an all-reduce in `ALLREDUCE`."""
    return list(ALLREDUCE[algorithm](ranks, length))


def exchange(
    data: Sequence[Tensor],
    rounds: Iterable[Round],
    group: Group,
    op: Op = "sum",
    call: str = "",
) -> None:
    """Run rounds on the group's engine, and report them.

    A mean is only summed. Without a `call`, the calls of processes are not compared.
    """
    if call and group.is_distributed:
        shape, dtype = tuple(data[0].shape), backend_of(data[0]).dtype_of(data[0])
        group.engine.begin(f"{call} of {shape} {dtype}")
    rounds = [*group.to_global_ranks(rounds)]
    group.engine.exchange(data, rounds, "max" if op == "max" else "sum")
    report_rounds(rounds, data[0])


def report_rounds(rounds: Iterable[Round], x: Tensor) -> None:
    """Report rounds of messages with elements as in `x` to the observers."""
    if observers.get():
        size = itemsize(x)
        for this_round in rounds:
            notify("on_round", this_round, size)


def start_native(
    what: str,
    data: Sequence[Tensor],
    rounds: Iterable[Round],
    group: Group,
    op: Op = "sum",
    root: int = 0,
) -> Work:
    """Begin a collective that the engine has; report the rounds that it represents.

    A mean is only summed. Raises `InvalidInput` where the engine has none.
    """
    engine, x = group.engine, data[0]
    dtype = backend_of(x).dtype_of(x)
    check_native(engine, what, dtype)
    if group.is_distributed:
        shape = tuple(x.shape if what == "allreduce" else x.shape[1:])  # rows differ
        engine.begin(f"native {op} {what} at rank {root} of {shape} {dtype}")
    report_rounds(group.to_global_ranks(rounds), x)
    if what == "allreduce" and not element_count(x):  # some engines fail on that
        return Work()
    return engine.start(what, data, "max" if op == "max" else "sum", root)


def divide_(data: Sequence[Tensor], group: Group) -> None:
    """Divide sums by the number of ranks, in place."""
    for x in data:
        B, size = backend_of(x), element_count(x)
        plain = B.dtype_of(x) in ("float32", "float64")
        memory = B.memory(x) if plain else None
        if memory is None:
            B.write_(x, 0, size, B.read(x, 0, size) / group.size)
        else:  # fresh memory for the quotient costs far more than the division
            memory /= group.size
