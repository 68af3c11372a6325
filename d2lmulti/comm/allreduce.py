"""All-reduce: run a plan on real tensors, one tensor per local rank, in place.

`data` always holds one tensor per local rank, in rank order: a tensor's position is its
rank. A collective in progress can be waited for later (`Work`). Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

from ..backends import backend_of, element_count, itemsize, nbytes
from ..backends.protocol import Tensor
from ..checks import check_choice, check_data, check_native
from ..events import notify_round, notify_rounds, observers
from ..plans.allreduce import ALLREDUCE, choose_allreduce
from ..plans.rounds import Plan, Round
from .group import Group, Work, group_for

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
    reach them), and all end with the same bits; `recursive_doubling` alone may leave a
    maximum of 0 and -0, or a NaN, in two forms. `algorithm` is a name in `ALLREDUCE`,
    `auto` (see `choose_allreduce`), `native` for the engine's own, or a plan of your
    own; `op` is sum, mean or max. Raises `InvalidInput` for entries that differ in
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
    """Raise for what is neither the name of an all-reduce nor a plan."""
    if not callable(algorithm):
        check_choice("algorithm", algorithm, (*ALLREDUCE, "auto", "native"))


def start_allreduce(
    data: Sequence[Tensor], algorithm: str | Plan, group: Group, op: Op = "sum"
) -> Work:
    """Begin an `allreduce` of tensors that have been checked already.

    The engine's own may be in progress until it is waited for; a plan runs at once.
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
        rounds = _rounds(algorithm, group.size, length)
        exchange(data, rounds, group, op, f"{op} all-reduce")
    if op != "mean":
        return work

    def end() -> None:
        work.wait()
        divide_(data, group)

    return Work(end)


def _rounds(algorithm: str | Plan, ranks: int, length: int) -> Iterable[Round]:
    if callable(algorithm):
        return algorithm(ranks, length)
    if ranks > 16:
        return ALLREDUCE[algorithm](ranks, length)
    return _remembered(algorithm, ranks, length)


@lru_cache(maxsize=256)  # a training step repeats the same few plans
def _remembered(algorithm: str, ranks: int, length: int) -> list[Round]:
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
        form = f"{tuple(data[0].shape)} {backend_of(data[0]).dtype_of(data[0])}"
        group.engine.begin(f"{call} of {form}")
    rounds = group.to_global_ranks(rounds)
    if observers.get():
        rounds = notify_rounds(rounds, itemsize(data[0]))
    group.engine.exchange(data, rounds, "max" if op == "max" else "sum")


def start_native(
    what: str,
    data: Sequence[Tensor],
    rounds: Iterable[Round],
    group: Group,
    op: Op = "sum",
    root: int = 0,
) -> Work:
    """Begin a collective that the engine has; report the rounds it stands for.

    A mean is only summed. Raises `InvalidInput` where the engine has none.
    """
    engine, x = group.engine, data[0]
    dtype = backend_of(x).dtype_of(x)
    check_native(engine, what, dtype)
    if group.is_distributed:
        shape = tuple(x.shape if what == "allreduce" else x.shape[1:])  # rows differ
        engine.begin(f"native {op} {what} at rank {root} of {shape} {dtype}")
    if observers.get():
        size = itemsize(x)
        for this_round in group.to_global_ranks(rounds):
            notify_round(this_round, size)
    if what == "allreduce" and not element_count(x):  # some engines fail on that
        return Work()
    return engine.start(what, data, "max" if op == "max" else "sum", root)


def divide_(data: Sequence[Tensor], group: Group) -> None:
    """Divide sums by the number of ranks, in place."""
    for x in data:
        B, size = backend_of(x), element_count(x)
        plain = B.dtype_of(x) in ("float32", "float64")
        held = B.memory(x) if plain else None
        if held is None:
            B.write_(x, 0, size, B.read(x, 0, size) / group.size)
        else:  # fresh memory for the quotient costs far more than the division
            held /= group.size
