"""What each process of a group is asked for about sub-groups, for `test_engines`."""

from __future__ import annotations

from typing import Any

import numpy as np

import d2lmulti
from d2lmulti.backends.protocol import Backend
from d2lmulti.comm.collectives import receive, send
from d2lmulti.comm.group import Group, local_group
from d2lmulti.comm.mesh import Mesh, split_group
from d2lmulti.errors import InvalidInput
from d2lmulti.plans.allreduce import ALLREDUCE


def on_a_mesh(B: Backend, group: Group, n: int) -> dict[str, Any]:
    """Compare sub-groups with those of one process; send in one; try what is wrong."""
    axes = {"data": 2, "tensor": n // 2}
    mesh = Mesh(**axes)
    alone, mine = moves(B, Mesh(local_group(n), **axes)), moves(B, mesh)
    (rank,) = group.local_ranks
    # Others may talk less, and more often, than these: nobody counts alike.
    ends = split_group([[0, n - 1]], group)
    for _ in range(3):
        for both in ends:
            d2lmulti.allreduce([B.array(np.ones(3))], group=both)
    return {
        "differ": [name for name, bits in mine.items() if alone[name] != bits],
        "count": len(mine),
        "sent": [sent_along(B, mesh, axis, rank) for axis in axes],
        "told": [
            mesh.group_of(axis, rank).engine.allgather_text(f"rang {rank} é")
            for axis in axes
        ],
        "ends": [list(both.ranks) for both in ends],
        "refused": [
            invalid(lambda: split_group([[0, 1]] if rank else [[0], [1]], group)),
            invalid(lambda: Mesh(data=n + 1)),
            invalid(lambda: split_group([[0]], mesh.groups("data")[0])),
        ],
    }


def moves(B: Backend, mesh: Mesh) -> dict[str, bytes]:
    """Run collectives along every axis; give what each local rank has in the end."""
    ranks, found = mesh.group.local_ranks, {}
    rng = np.random.default_rng(3)
    values, whole = rng.normal(size=(2, mesh.size, 12))
    for axis, k in mesh.axes.items():

        def tensors(rows: np.ndarray) -> list[Any]:
            return [B.array(rows[rank]) for rank in ranks]

        for algorithm in (*ALLREDUCE, "auto"):
            for op in ("sum", "max", "mean"):
                xs = tensors(values)
                mesh.along(axis, d2lmulti.allreduce, xs, algorithm=algorithm, op=op)
                found[f"{algorithm} {op} along {axis}"] = xs
        xs, ys, zs = tensors(whole.round()), tensors(values), tensors(values)
        if "allreduce" in mesh.groups(axis)[0].engine.native:
            mesh.along(axis, d2lmulti.allreduce, xs, algorithm="native")
        found[f"native along {axis}"] = xs
        mesh.along(axis, d2lmulti.broadcast, ys, root=k - 1)
        mesh.along(axis, d2lmulti.alltoall, zs)
        found |= {f"broadcast along {axis}": ys, f"all-to-all along {axis}": zs}
        for what in (d2lmulti.allgather, d2lmulti.reduce_scatter):
            name = f"{what.__name__} along {axis}"
            found[name] = mesh.along(axis, what, tensors(values))
    return {
        f"{name} on rank {rank}": B.numpy(x).tobytes()
        for name, xs in found.items()
        for rank, x in zip(ranks, xs, strict=True)
    }


def sent_along(B: Backend, mesh: Mesh, axis: str, rank: int) -> list[float]:
    """Send this rank's number to the next one along an axis; give what the last has."""
    group = mesh.group_of(axis, rank)
    (at,) = group.local_ranks
    x = B.array(np.float64([rank]))
    if at:
        x = B.array(B.numpy(receive(B, at - 1, at, "cpu", group)) * 10 + rank)
    if at < group.size - 1:
        send(x, at, at + 1, group)
    return B.numpy(x).tolist()


def invalid(call: Any) -> str:
    try:
        call()
    except InvalidInput as error:
        return str(error)
    return ""
