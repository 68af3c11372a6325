"""A training step on a mesh: all ranks their part of the batch, and their sums."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor, element_count
from ...checks import check_count, check_list, check_positive
from ...comm.allreduce import check_algorithm, start_allreduce
from ...comm.collectives import allgather, reduce_scatter
from ...comm.split import check_batch
from ...errors import InvalidInput, plural
from ...events import notify_work
from ...optimizers import Optimizer, check_optimizer, check_states
from ...parallel.pipeline import make_lists
from ...plans.pipeline import BackwardInput, BackwardWeight, Lists
from ...plans.rounds import Plan, even_bounds
from ...plans.schedules import Schedule
from .holding import MeshParams, check_placed, of_stage
from .replica import Replica


def train_on_mesh(
    X: Tensor,
    y: Tensor,
    placed: MeshParams,
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    schedule: str | Schedule = "1f1b",
    micro_batches: int = 4,
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    algorithm: str | Plan = "star",
) -> list[Tensor]:
    """Take one step on a batch, split along all axes of a mesh.

    X (n, ...), y (n, ...): the whole batch, in every process. Each replica takes its
    part, as even as possible, in `micro_batches`; one is a place along `data`, and
    where there are experts, along `data` and `expert`. Along `sequence` each rank has
    some tokens of every example, in a zigzag, and attention goes round in a ring.
    placed: from `place_on_mesh`, updated in place; what several ranks hold stays equal
    bit for bit. `states`: the optimizer's, of `placed.parts()`, one list a local rank.
    The gradient is the sum over all targets in y, divided once by their number: experts
    drop no token, and no loss keeps them equally busy. Returns the summed losses of
    each rank's own tokens, once, where the last stage is in this process. Raises
    `InvalidInput` for fewer examples than replicas x micro-batches, for fewer tokens
    than ranks along `sequence`, and for a schedule that splits the way back in two
    halves (zero_bubble, zb_h2, zb_v) or places stages elsewhere.
    """
    B = check_batch(X, y)
    check_list("devices", devices, "devices", hint="use devices(1)")
    mesh = check_placed(placed).mesh
    if len(devices) != len(placed):
        raise InvalidInput(
            f"expected the {plural(len(placed), 'device')} of place_on_mesh, got "
            f"{len(devices)}; pass the same list"
        )
    check_positive("lr", lr, "try 0.05")
    check_algorithm(algorithm)
    optimizer, states = check_optimizer(optimizer), check_states(states, len(devices))
    lists = mesh_lists(placed, schedule, micro_batches)
    experts = mesh.axes.get("expert", 1)
    bounds = _bounds(len(X), mesh.axes.get("data", 1) * experts, micro_batches)

    for mine in placed:
        for p in mine:
            B.clear_grad_(p)
    losses: list[tuple[int, Tensor]] = []
    for at in range(mesh.axes.get("data", 1)):
        replica = Replica(placed, devices, at, algorithm)
        if replica.index:
            mine = bounds[at * experts : (at + 1) * experts]
            losses += replica.run(lists, X, y, mine)
    with notify_work(devices, "all-reduce", B.synchronize):
        _sum_copies(placed, algorithm)
        parts = _sum_replicas(placed, algorithm)
    for mine, state, device in zip(parts, states, devices, strict=True):
        with notify_work([device], "update", B.synchronize):
            optimizer.step_(mine, state, lr, n=element_count(y))
    if placed.zero:
        _share(placed, parts)
    # In the order of ranks, in which those of several processes are added up.
    return [loss for _, loss in sorted(losses, key=lambda found: found[0])]


def mesh_lists(
    placed: MeshParams, schedule: str | Schedule, micro_batches: int
) -> Lists:
    """Give the instructions of all ranks along `pipeline`, proved."""
    check_count("micro_batches", micro_batches)
    group = placed.mesh.groups("pipeline")[0]
    lists, ranks = make_lists(schedule, len(placed.stages), micro_batches, group)
    halves = (BackwardInput, BackwardWeight)
    if ranks != [stage.rank for stage in placed.stages] or any(
        isinstance(i, halves) for mine in lists for i in mine
    ):
        raise InvalidInput(
            "expected a schedule with stage s at s mod p and an undivided way back, "
            "such as gpipe, 1f1b or interleaved, got another; train_stages, on one "
            "axis, has the others"
        )
    return lists


def _sum_copies(placed: MeshParams, algorithm: str | Plan) -> None:
    """Sum within each replica what its ranks have shares of, having other tokens.

    Along `tensor` see `ShardSpec.summed`; along `sequence` that is all, and along
    `expert` all but the experts, to which the tokens of all ranks have come.
    """
    shares = {
        "tensor": lambda cut: cut.summed,
        "sequence": lambda cut: True,
        "expert": lambda cut: not cut.experts,
    }
    for axis, stage in itertools.product(shares, placed.stages):
        if placed.mesh.axes.get(axis, 1) == 1:
            continue
        for j, (_, cut) in enumerate(stage.model.cuts):
            if not shares[axis](cut):
                continue
            for group, at in of_stage(placed.mesh, stage, axis):
                grads = [_grad(placed.of_stage(i, stage)[j]) for i in at]
                start_allreduce(grads, algorithm, group).wait()


def _sum_replicas(placed: MeshParams, algorithm: str | Plan) -> list[list[Tensor]]:
    """Sum the gradients along `data`; give what each rank's optimizer updates."""
    parts = placed.parts()
    for group, at in placed.mesh.local("data"):
        for j in range(len(placed[at[0]])):
            grads = [_grad(placed[i][j]) for i in at]
            if not placed.zero:
                start_allreduce(grads, algorithm, group).wait()
                continue
            B = backend_of(grads[0])
            with B.pause():
                summed = reduce_scatter(grads, group)
            for i, grad in zip(at, summed, strict=True):
                B.attach_grad(parts[i][j])
                B.write_(B.grad(parts[i][j]), 0, element_count(grad), grad)
    return parts


def _share(placed: MeshParams, parts: Sequence[Sequence[Tensor]]) -> None:
    """Let all replicas have what each has updated."""
    for group, at in placed.mesh.local("data"):
        for j in range(len(placed[at[0]])):
            mine = [parts[i][j] for i in at]
            B = backend_of(mine[0])
            with B.pause():
                wholes = allgather(mine, group)
            for i, whole in zip(at, wholes, strict=True):
                B.write_(placed[i][j], 0, element_count(whole), whole)


def _grad(p: Tensor) -> Tensor:
    return backend_of(p).grad(p)


def _bounds(n: int, replicas: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Cut a batch for the replicas, and each part into micro-batches."""
    if n // replicas < micro_batches:
        raise InvalidInput(
            f"cannot split {plural(n, 'example')} over {replicas} replicas of "
            f"{micro_batches} micro-batches each; use at least "
            f"{replicas * micro_batches} examples, or fewer of these"
        )
    return [
        [(first + a, first + b) for a, b in even_bounds(last - first, micro_batches)]
        for first, last in even_bounds(n, replicas)
    ]
