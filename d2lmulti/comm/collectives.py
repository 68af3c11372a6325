"""The other collectives: each is a plan, or native on engines without messages.

`reduce`, `broadcast` and `alltoall` work in place; `reduce_scatter` and `allgather`,
whose results have another size, return new tensors and leave `data` alone. At the end,
point-to-point messages. Chapter: *allreduce*.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from ..backends import DTYPES, backend_of, element_count
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_count, check_data, check_rows
from ..errors import InvalidInput
from ..events import unobserved
from ..plans import collectives as plans
from ..plans.rounds import Round, even_bounds, make_round
from .group import (
    Group,
    Op,
    divide_,
    exchange,
    group_for,
    start_native,
)


def reduce(
    data: Sequence[Tensor], root: int = 0, group: Group | None = None, op: Op = "sum"
) -> None:
    """Sum all ranks' entries into the entry of rank `root`, in place.

    The other entries end as partial sums: they are the working memory. Raises
    `InvalidInput` as `allreduce` does, and for a root that is no rank.
    """
    check_data(data, op)
    group = group_for(len(data), group)
    root = check_count("root", root, min=0, max=group.size - 1)
    rounds = plans.reduce(group.size, element_count(data[0]), root)
    if group.engine.point_to_point:
        exchange(data, rounds, group, op, f"{op} reduce to rank {root}")
    else:
        start_native("allreduce", data, rounds, group, op, root).wait()
    if op == "mean" and root in group.local_ranks:
        divide_([data[group.local_ranks.index(root)]], group)


def broadcast(
    data: Sequence[Tensor], root: int = 0, group: Group | None = None
) -> None:
    """Replace every entry of `data` by that of rank `root`, in place.

    Raises `InvalidInput` as `allreduce` does, and for a root that is no rank.
    """
    check_data(data)
    group = group_for(len(data), group)
    root = check_count("root", root, min=0, max=group.size - 1)
    rounds = plans.broadcast(group.size, element_count(data[0]), root)
    if group.engine.point_to_point:
        exchange(data, rounds, group, call=f"broadcast from rank {root}")
    else:
        start_native("broadcast", data, rounds, group, root=root).wait()


def reduce_scatter(
    data: Sequence[Tensor], group: Group | None = None, op: Op = "sum"
) -> list[Tensor]:
    """Sum all ranks' entries; return each rank's part of the sum, as a new tensor.

    The flattened sum is cut by `even_bounds(elements, ranks)`; rank r gets part r, 1-d.
    `data` is left as it was. Raises `InvalidInput` as `allreduce` does.
    """
    check_data(data, op)
    group = group_for(len(data), group)
    B = backend_of(data[0])
    work = [B.copy_to(x, B.device_of(x)) for x in data]
    length = element_count(data[0])
    rounds = plans.reduce_scatter(group.size, length)
    if group.engine.point_to_point:
        exchange(work, rounds, group, op, f"{op} reduce-scatter")
        bounds = even_bounds(length, group.size)
        parts = [
            B.copy_to(B.read(x, *bounds[rank]), B.device_of(x))
            for x, rank in zip(work, group.local_ranks, strict=True)
        ]
    else:
        parts = start_native("reduce_scatter", work, rounds, group, op).wait()
    if op == "mean":
        divide_(parts, group)
    return parts


def allgather(data: Sequence[Tensor], group: Group | None = None) -> list[Tensor]:
    """Return all entries on every rank, joined along the first dimension by rank.

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
        return start_native("allgather", data, rounds, group).wait()
    wholes = []
    for x, rank in zip(data, group.local_ranks, strict=True):
        whole = B.zeros((sum(rows), *row), B.dtype_of(x), B.device_of(x))
        B.write_(whole, int(edges[rank]), int(edges[rank + 1]), x)
        wholes.append(whole)
    exchange(wholes, rounds, group, call="all-gather")
    return wholes


def alltoall(data: Sequence[Tensor], group: Group | None = None) -> None:
    """Exchange blocks of rows in place: block t of rank s becomes block s of rank t.

    Every entry (ranks * rows, ...) is cut into one block of rows per rank. Raises
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
    rounds = plans.alltoall(group.size, block)
    exchange(data, rounds, group, call="all-to-all")


def run_plan(data: Sequence[Tensor], rounds: Iterable[Round], group: Group) -> None:
    """Run a plan on `data`, in place, round by round; `add` means a sum."""
    exchange(data, rounds, group, call="plan")


def usual_algorithm(group: Group) -> str:
    """Return the default all-reduce: the star, where it can run."""
    return "star" if group.engine.point_to_point else "native"


def _rows_of_all(data: Sequence[Tensor], group: Group) -> list[int]:
    """Return the number of rows of every rank; other processes report theirs."""
    rows = [len(x) for x in data]
    if len(rows) == group.size:
        return rows
    texts = group.engine.allgather_text(json.dumps(rows))
    return [count for text in texts for count in json.loads(text)]


_DIMS = 8  # of a tensor, at most: room in the header that is sent first


def copy_between(
    x: Tensor, source: int, target: int, device: AnyDevice, group: Group
) -> Tensor:
    """Copy `x` of rank `source` to rank `target`, on `device`; it is counted.

    Returns a new tensor there, outside any graph. Raises `InvalidInput` for ranks that
    are not two different ones of this process.
    """
    if source == target or not {source, target} <= set(group.local_ranks):
        raise InvalidInput(
            f"expected two different ranks among {group.local_ranks}, got {source} "
            f"and {target}; a copy goes from one device of this process to another"
        )
    B = backend_of(x)
    arrived = B.zeros(tuple(x.shape), B.dtype_of(x), device)
    data = [x] * group.size  # only these two places are read and written
    data[target] = arrived
    size = element_count(x)
    with B.pause():
        exchange(data, [make_round(source, target, 0, size, add=False)], group)
    return arrived


def send(x: Tensor, source: int, target: int, group: Group) -> None:
    """Send `x` of the local rank `source` to a rank of another process; it is counted.

    Waits until `x` may be changed again. Raises `InvalidInput` for more than 8
    dimensions.
    """
    B = backend_of(x)
    if len(x.shape) > _DIMS:
        raise InvalidInput(
            f"expected at most {_DIMS} dimensions, got {len(x.shape)}; reshape it"
        )
    header = np.full(_DIMS + 1, -1)
    header[: len(x.shape)] = x.shape
    header[_DIMS] = DTYPES.index(B.dtype_of(x))
    with B.pause():
        x = B.copy_to(x, B.device_of(x))  # row by row, outside any graph
        with unobserved():
            _exchange_one(B.array(header, B.device_of(x)), source, target, group)
        _exchange_one(x, source, target, group)


def receive(
    B: Backend, source: int, target: int, device: AnyDevice, group: Group
) -> Tensor:
    """Receive what `source` sends to the local rank `target`; it is counted.

    Returns a new tensor on `device`.
    """
    with B.pause():
        header = B.array(np.zeros(_DIMS + 1, np.int64), device)
        with unobserved():
            _exchange_one(header, source, target, group)
        *shape, dtype = B.numpy(header).tolist()
        shape = [extent for extent in shape if extent >= 0]
        x = B.zeros(shape, DTYPES[dtype], device)
        _exchange_one(x, source, target, group)
    return x


def _exchange_one(x: Tensor, source: int, target: int, group: Group) -> None:
    this_round = make_round(source, target, 0, element_count(x), add=False)
    if len(this_round):
        exchange([x], [this_round], group)
