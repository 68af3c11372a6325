"""Collectives: run a plan on real tensors, one tensor per local rank.

`allreduce`, `reduce`, `broadcast` and `alltoall` work in place; `reduce_scatter` and
`allgather`, whose results have another size, return new tensors and leave `data` alone.
`data` always holds one tensor per local rank, in rank order: a tensor's position is its
rank. Chapter: *allreduce*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..backends.sizes import element_count, itemsize, nbytes
from ..checks import check_choice, check_count, check_kind, check_list
from ..cluster.ledger import open_ledgers, uncounted
from ..errors import InvalidInput
from ..plans import collectives as plans
from ..plans.allreduce import ALLREDUCE
from ..plans.choose import choose_allreduce
from ..plans.chunks import even_bounds
from ..plans.rounds import Plan, Round, check_rounds
from .checks import check_data, check_op, check_rows
from .engines import Combine, nothing
from .group import Group, group_for
from .native import run_native, start_native, usual_algorithm

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
    reach them), and all end with the same bits. `algorithm` is a name in `ALLREDUCE`,
    `auto` (see `choose_allreduce`), `native` for the engine's own, or a plan of your
    own; `op` is sum, mean or max. Raises `InvalidInput` for an empty list, entries that
    differ in shape, dtype or framework, an entry given twice, an unknown algorithm or
    op, a mean of integers, a maximum of complex numbers, and for `native` where the
    engine has none, or none for the dtype.

    Sums are added up in the dtype itself. In bfloat16, with 8 significant bits, each
    addition rounds by up to 1/512 of the partial sum, so k ranks by up to (k-1)/512
    with the star and half of log2(k) of these with the tree; 1/256 added to 1 is lost.
    Where that matters, sum in float32.
    """
    start_allreduce(data, algorithm, group, op)()


def start_allreduce(
    data: Sequence[Tensor],
    algorithm: str | Plan = "star",
    group: Group | None = None,
    op: Op = "sum",
) -> Callable[[], None]:
    """Begin an `allreduce`; the function that comes back waits until it is done.

    An engine's own may be under way meanwhile; all others are done at once.
    """
    check_algorithm(algorithm)
    check_data(data)
    check_op(op, data[0])
    group = group_for(len(data), group)
    if algorithm == "auto":
        algorithm = choose_allreduce(group.size, nbytes(data[0]))
    end = nothing
    if algorithm == "native":
        end = start_native(data, group, op)
    else:
        plan = algorithm if callable(algorithm) else partial(_rounds, algorithm)
        rounds = plan(group.size, element_count(data[0]))
        run_plan(data, rounds, group, op, f"{op} all-reduce")

    def finish() -> None:
        end()
        if op == "mean":
            for x in data:
                _divide_(x, group.size)

    return finish


def check_algorithm(algorithm: str | Plan) -> None:
    """Refuse what is neither the name of an all-reduce nor a plan."""
    if not callable(algorithm):
        check_choice("algorithm", algorithm, (*ALLREDUCE, "auto", "native"))


def _rounds(algorithm: str, ranks: int, length: int) -> Iterable[Round]:
    if ranks > 16:
        return ALLREDUCE[algorithm](ranks, length)
    return _remembered(algorithm, ranks, length)


@lru_cache(maxsize=256)  # a training step repeats the same few plans
def _remembered(algorithm: str, ranks: int, length: int) -> list[Round]:
    return list(ALLREDUCE[algorithm](ranks, length))


def reduce(
    data: Sequence[Tensor], root: int = 0, group: Group | None = None, op: Op = "sum"
) -> None:
    """Leave the sum of all ranks' entries in that of rank `root`, in place.

    The other entries end as partial sums: they are the working memory. Raises what
    `allreduce` raises, and `InvalidInput` for a root that is no rank.
    """
    check_data(data)
    check_op(op, data[0])
    group = group_for(len(data), group)
    root = check_count("root", root, least=0, most=group.size - 1)
    rounds = plans.reduce(group.size, element_count(data[0]), root)
    if group.engine.point_to_point:
        run_plan(data, rounds, group, op, f"{op} reduce to rank {root}")
    else:
        run_native("allreduce", data, rounds, group, op, root)
    if op == "mean" and root in group.local_ranks:
        _divide_(data[group.local_ranks.index(root)], group.size)


def broadcast(
    data: Sequence[Tensor], root: int = 0, group: Group | None = None
) -> None:
    """Replace every entry of `data` by that of rank `root`, in place.

    Raises `InvalidInput` as `allreduce` does, and for a root that is no rank.
    """
    check_data(data)
    group = group_for(len(data), group)
    root = check_count("root", root, least=0, most=group.size - 1)
    rounds = plans.broadcast(group.size, element_count(data[0]), root)
    if group.engine.point_to_point:
        run_plan(data, rounds, group, call=f"broadcast from rank {root}")
    else:
        run_native("broadcast", data, rounds, group, root=root)


def reduce_scatter(
    data: Sequence[Tensor], group: Group | None = None, op: Op = "sum"
) -> list[Tensor]:
    """Sum all ranks' entries and give each rank its part of the sum, as a new tensor.

    The flattened sum is cut by `even_bounds(elements, ranks)`; rank r gets part r, 1-d.
    `data` is left as it was. Raises what `allreduce` raises.
    """
    check_data(data)
    check_op(op, data[0])
    group = group_for(len(data), group)
    B = backend_of(data[0])
    work = [B.copy_to(x, B.device_of(x)) for x in data]
    length = element_count(data[0])
    rounds = plans.reduce_scatter(group.size, length)
    if group.engine.point_to_point:
        run_plan(work, rounds, group, op, f"{op} reduce-scatter")
        bounds = even_bounds(length, group.size)
        parts = [
            B.copy_to(B.read(x, *bounds[rank]), B.device_of(x))
            for x, rank in zip(work, group.local_ranks, strict=True)
        ]
    else:
        parts = run_native("reduce_scatter", work, rounds, group, op)
    if op == "mean":
        for part in parts:
            _divide_(part, group.size)
    return parts


def allgather(data: Sequence[Tensor], group: Group | None = None) -> list[Tensor]:
    """Give every rank all entries, joined along the first dimension in rank order.

    The entries may differ in their number of rows, the first dimension, and in nothing
    else; (rows of rank 0, ...), (rows of rank 1, ...) give (all rows, ...), new on each
    rank. Raises `InvalidInput` as `allreduce` does, and for a tensor of no dimension.
    """
    check_rows(data)
    group = group_for(len(data), group)
    B = backend_of(data[0])
    rows = _rows_of_all(data, group)
    row = tuple(data[0].shape[1:])
    edges = np.concatenate([[0], np.cumsum(rows)]) * int(np.prod(row, dtype=int))
    rounds = plans.ring_allgather(np.arange(group.size), edges)
    rounds = (this_round for this_round in rounds if len(this_round))
    if not group.engine.point_to_point:
        return run_native("allgather", data, rounds, group)
    wholes = []
    for x, rank in zip(data, group.local_ranks, strict=True):
        whole = B.zeros((sum(rows), *row), B.dtype_of(x), B.device_of(x))
        B.write_(whole, int(edges[rank]), int(edges[rank + 1]), x)
        wholes.append(whole)
    run_plan(wholes, rounds, group, call="all-gather")
    return wholes


def alltoall(data: Sequence[Tensor], group: Group | None = None) -> None:
    """Swap blocks of rows in place: block t of rank s becomes block s of rank t.

    Every entry (ranks * rows, ...) is cut into one block of rows a rank. Raises
    `InvalidInput` as `allreduce` does, and for rows that `ranks` does not divide.
    """
    check_data(data)
    check_rows(data)
    group = group_for(len(data), group)
    rows = int(data[0].shape[0])
    if rows % group.size:
        raise InvalidInput(
            f"expected a first dimension that {group.size} ranks divide, got {rows} "
            f"rows; pad to {-(-rows // group.size) * group.size} rows"
        )
    block = element_count(data[0]) // group.size
    run_plan(data, plans.alltoall(group.size, block), group, call="all-to-all")


def run_plan(
    data: Sequence[Tensor],
    rounds: Iterable[Round],
    group: Group,
    op: Op = "sum",
    call: str = "plan",
) -> None:
    """Carry out a plan on `data`, in place, round by round, and count it.

    `call` names it to the other processes, which must make the same call.
    """
    check_list("data", data, "tensors, one per device")
    check_kind("group", group, Group, "a group of ranks")
    check_choice("op", op, ("sum", "mean", "max"))
    size = itemsize(data[0])
    combine: Combine = "max" if op == "max" else "sum"  # a mean is divided later
    if group.is_distributed:
        form = f"{tuple(data[0].shape)} {backend_of(data[0]).dtype_of(data[0])}"
        group.engine.begin(f"{call} of {form}")
    for this_round in check_rounds(rounds):
        group.engine.exchange(data, this_round, combine)
        for ledger in open_ledgers():
            ledger.count_round(this_round, size)


def _divide_(x: Tensor, n: int) -> None:
    B, size = backend_of(x), element_count(x)
    B.write_(x, 0, size, B.read(x, 0, size) / n)


def _rows_of_all(data: Sequence[Tensor], group: Group) -> list[int]:
    """Tell how many rows every rank has; other processes must be asked."""
    rows = [len(x) for x in data]
    if len(rows) == group.size:
        return rows
    B = backend_of(data[0])
    counts = []
    for x, rank in zip(data, group.local_ranks, strict=True):
        mine = np.where(np.arange(group.size) == rank, len(x), 0)
        counts.append(B.array(mine, B.device_of(x)))
    with uncounted():
        allreduce(counts, usual_algorithm(group), group)
    return [int(count) for count in B.numpy(counts[0])]
