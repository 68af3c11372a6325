"""A training step on a mesh: each rank its part of the batch, and the sums of all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...backends import backend_of, element_count
from ...backends.protocol import AnyDevice, Tensor
from ...comm.allreduce import check_algorithm, start_allreduce
from ...comm.collectives import allgather, reduce_scatter
from ...errors import InvalidInput, plural
from ...optimizers import Optimizer
from ...plans.pipeline import BackwardInput, BackwardWeight, Lists
from ...plans.rounds import Plan, even_bounds
from ...plans.schedules import Schedule
from ..pipeline.executor import Executor
from ..pipeline.training import make_lists, micro_bounds
from ..step import Step
from .placement import MeshParams, check_placed, of_stage
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
    some tokens of every example, in a zigzag, and attention runs in a ring. placed:
    from `place_on_mesh`, updated in place; what several ranks hold stays equal bit for
    bit. `states`: the optimizer's, of `placed.parts()`, one list per local rank. The
    gradient is the sum over all targets in y, divided once by their number: experts
    drop no token, and no loss keeps them equally busy. Returns the summed losses of
    each rank's own tokens, once, where the last stage is in this process. Raises
    `InvalidInput` for fewer examples than replicas x micro-batches, for fewer tokens
    than ranks along `sequence`, and for a schedule that splits the backward pass in two
    halves (zero_bubble, zb_h2, zb_v) or places stages elsewhere.
    """
    mesh = check_placed(placed).mesh
    step = Step(X, y, devices, lr, optimizer=optimizer, states=states, group=mesh.group)
    check_algorithm(algorithm)
    lists = mesh_lists(placed, schedule, micro_batches)
    replicas, experts = mesh.axes.get("data", 1), mesh.axes.get("expert", 1)
    bounds = _bounds(len(X), replicas * experts, micro_batches)

    step.clear_(placed)
    losses: list[tuple[int, Tensor]] = []  # with the rank that has it
    for at in range(replicas):
        own = bounds[at * experts : (at + 1) * experts]
        replica = Replica(step, placed, own, at, algorithm)
        if lines := replica.lines():
            found = Executor(replica, lines).run(lists)
            ranks = replica.here[placed.stages[-1].rank]
            for k in sorted(found):
                for rank, loss in zip(ranks, found[k], strict=True):
                    if not replica.place(rank, "tensor"):  # all along it have the same
                        losses.append((rank, loss))
    with step.span("all-reduce"):
        _sum_copies(placed, algorithm)
        parts = _sum_replicas(placed, algorithm)
    step.update_(parts)
    if placed.zero:
        _gather_parts(placed, parts)
    # In the order of ranks, in which those of several processes are added up.
    return [loss for _, loss in sorted(losses, key=lambda pair: pair[0])]


def mesh_lists(
    placed: MeshParams, schedule: str | Schedule, micro_batches: int
) -> Lists:
    """Return the verified instructions of all ranks along `pipeline`."""
    group = placed.mesh.groups("pipeline")[0]
    lists, ranks = make_lists(schedule, len(placed.stages), micro_batches, group)
    halves = (BackwardInput, BackwardWeight)
    if ranks != [stage.rank for stage in placed.stages] or any(
        isinstance(i, halves) for mine in lists for i in mine
    ):
        raise InvalidInput(
            "expected a schedule with stage s at s mod p and whole backward passes, "
            "such as gpipe, 1f1b or interleaved, got another; train_stages, on one "
            "axis, has the others"
        )
    return lists


def _sum_copies(placed: MeshParams, algorithm: str | Plan) -> None:
    """Sum within each replica the partial gradients of ranks with different tokens.

    Along `tensor` see `ShardSpec.summed`; along `sequence` that is all, and along
    `expert` all but the experts, to which the tokens of all ranks have come.
    """
    shares = {
        "tensor": lambda spec: spec.summed,
        "sequence": lambda spec: True,
        "expert": lambda spec: not spec.experts,
    }
    for axis, stage in itertools.product(shares, placed.stages):
        if placed.mesh.axes.get(axis, 1) == 1:
            continue
        for j, (_, spec) in enumerate(stage.model.specs):
            if not shares[axis](spec):
                continue
            for group, at in of_stage(placed.mesh, stage, axis):
                grads = [_grad(placed.of_stage(i, stage)[j]) for i in at]
                start_allreduce(grads, algorithm, group).wait()


def _sum_replicas(placed: MeshParams, algorithm: str | Plan) -> list[list[Tensor]]:
    """Sum the gradients along `data`; return what each rank's optimizer updates."""
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


def _gather_parts(placed: MeshParams, parts: Sequence[Sequence[Tensor]]) -> None:
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
        [(first + a, first + b) for a, b in micro_bounds(last - first, micro_batches)]
        for first, last in even_bounds(n, replicas)
    ]
