"""All parallelism strategies at once: replicas, split layers, and stages on a mesh.

A replica is a pipeline (axis `pipeline`) of stages. The ranks of a stage hold a shard
of every layer (axis `tensor`), some tokens of every example (`sequence`), and some of
the experts (`expert`). The batch is split over the replicas (`data`), and, with ZeRO 1,
so is the optimizer's state. Chapter: *composing*.
Source: Narayanan et al. (2021).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Tensor
from ..comm.collectives import allgather, reduce_scatter
from ..comm.cooperative import Ranks, run_cooperatively
from ..comm.group import Group, check_algorithm, start_allreduce
from ..errors import InvalidInput, plural
from ..models.tensor_parallel.layers import RankInfo, SequencePart, run_to_loss
from ..optimizers import Optimizer, assign_
from ..plans.pipeline import BackwardInput, BackwardWeight, Lists
from ..plans.rounds import Plan, even_bounds
from ..plans.schedules import Schedule
from .executor import Executor, Line, Run
from .mesh_placement import MeshParams, gather_from_mesh, of_stage, place_on_mesh
from .pipeline import make_lists, micro_bounds
from .sequence import ring_attention, token_positions
from .step import Step, load

__all__ = [
    "MeshParams",
    "gather_from_mesh",
    "mesh_lists",
    "place_on_mesh",
    "train_on_mesh",
]


class Replica:
    """The local stages of the replica at a coordinate along `data`.

    `bounds` limit the micro-batches' examples in X and y, for each coordinate along
    `expert`.
    """

    def __init__(
        self,
        step: Step,
        placed: MeshParams,
        bounds: Sequence[Sequence[tuple[int, int]]],
        at: int,
        algorithm: str | Plan,
    ) -> None:
        self.step, self.placed, self.bounds = step, placed, bounds
        self.B, self.count, self.algorithm = step.B, len(placed.stages), algorithm
        mesh = placed.mesh
        self.places = [mesh.coordinates(rank) for rank in range(mesh.size)]
        ranks = [rank for rank in range(mesh.size) if self.place(rank, "data") == at]
        self.ranks = [  # by coordinate along `pipeline`: all, and below the local ones
            [rank for rank in ranks if self.place(rank, "pipeline") == p]
            for p in range(mesh.axes.get("pipeline", 1))
        ]
        self.index = {rank: i for i, rank in enumerate(mesh.group.local_ranks)}
        self.local = [[r for r in row if r in self.index] for row in self.ranks]
        self.tokens = self._split_tokens()

    def lines(self) -> list[Line]:
        """Return the chains of ranks at the same position in every stage."""
        lines = []
        for chain in zip(*self.ranks, strict=True):
            devices = {
                p: self.step.devices[self.index[rank]]
                for p, rank in enumerate(chain)
                if rank in self.index
            }
            if devices:
                first = chain[next(iter(devices))]
                group = self.placed.mesh.group_of("pipeline", first)
                lines.append(Line(group, devices))
        return lines

    def inputs(self, micro: int) -> list[Tensor]:
        ranks = self.local[self.placed.stages[0].rank]
        return [self._load(self.step.X, rank, micro) for rank in ranks]

    def targets(self, micro: int) -> list[Tensor]:
        ranks = self.local[self.placed.stages[-1].rank]
        return [self._load(self.step.y, rank, micro) for rank in ranks]

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        this_stage = self.placed.stages[stage]
        ranks = self.local[this_stage.rank]
        passes = [
            run_to_loss(
                self.B,
                this_stage.model,
                self.placed.of_stage(self.index[rank], this_stage),
                x,
                ys[i] if ys is not None else None,
                self._info(rank, micro),
            )
            for i, (rank, x) in enumerate(zip(ranks, xs, strict=True))
        ]
        members = Ranks(ranks, lambda axis: self._groups(ranks, axis or "tensor"))
        outs, segments = run_cooperatively(self.B, passes, members, self.algorithm)
        return Run(outs, outs, segments.backward)

    def place(self, rank: int, axis: str) -> int:
        return self.places[rank].get(axis, 0)

    def _groups(
        self, ranks: Sequence[int], axis: str
    ) -> Iterator[tuple[Group, list[int]]]:
        """Yield these ranks' sub-groups along an axis; see `Ranks`."""
        for group in self.placed.mesh.groups(axis):
            if group.ranks[0] in self.ranks[self.place(ranks[0], "pipeline")]:
                yield group, [ranks.index(group.ranks[i]) for i in group.local_ranks]

    def _split_tokens(self) -> list[SequencePart]:
        """Distribute the tokens of X along `sequence`, in a zigzag; [] if it is 1."""
        ranks = self.placed.mesh.axes.get("sequence", 1)
        if ranks == 1:
            return []
        length = int(self.step.X.shape[1])
        positions = token_positions(length, ranks)
        attend = _attend_by_ring(positions)
        return [SequencePart(part, length, attend) for part in positions]

    def _load(self, x: Tensor, rank: int, micro: int) -> Tensor:
        """Load a rank's part of X or y: one row per example, one column per token."""
        first, last = self.bounds[self.place(rank, "expert")][micro]
        device = self.step.devices[self.index[rank]]
        if not self.tokens:
            return load(x[first:last], device)
        positions = self.tokens[self.place(rank, "sequence")].positions
        rows = np.ascontiguousarray(self.B.numpy(x[first:last])[:, positions])
        return self.B.array(rows, device)

    def _info(self, rank: int, micro: int) -> RankInfo:
        axes = self.placed.mesh.axes
        first, last = self.bounds[self.place(rank, "expert")][micro]
        tokens, shape = None, (last - first, *tuple(self.step.X.shape)[1:])
        if self.tokens:
            tokens = self.tokens[self.place(rank, "sequence")]
            shape = last - first, len(tokens.positions)
        tensor, expert = axes.get("tensor", 1), axes.get("expert", 1)
        place = self.place(rank, "tensor")
        return RankInfo(place, tensor, shape, expert, tokens, self.step.y)


def _attend_by_ring(positions: Sequence[np.ndarray]) -> Callable[..., Any]:
    """Return the function of an `Apply` that attends to all tokens along `sequence`.

    It takes queries, keys and values, (3 * heads, tokens, size) on each rank, where the
    heads are those of all examples, and returns the attention's outputs, (heads,
    tokens, size), and its backward pass. `positions` are those of each rank's tokens.
    """

    def attend(xs: Sequence[Tensor], group: Group) -> tuple[list[Tensor], Any]:
        heads = xs[0].shape[0] // 3
        queries, keys, values = (
            [_swap(x[i * heads : (i + 1) * heads]) for x in xs] for i in range(3)
        )
        attended = ring_attention(queries, keys, values, positions, group=group)

        def backward(grads: Sequence[Tensor]) -> list[Tensor]:
            B = backend_of(grads[0])
            input_grads = attended.backward([_swap(grad) for grad in grads])
            return [
                B.concat([_swap(d) for d in of_rank])
                for of_rank in zip(*input_grads, strict=True)
            ]

        return [_swap(x) for x in attended.outputs], backward

    return attend


def _swap(x: Tensor) -> Tensor:
    """Swap heads and tokens, in new storage."""
    B = backend_of(x)
    return B.copy_to(B.transpose(x, (1, 0, 2)), B.device_of(x))


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
    part, as even as possible, in `micro_batches`; there is one per coordinate along
    `data`, and with experts along `data` and `expert`. Along `sequence` each rank has
    some tokens of every example, in a zigzag, and attention runs in a ring. placed:
    from `place_on_mesh`, updated in place; replicated tensors stay equal bit for bit.
    `states`: the optimizer's, of `placed.parts()`, one list per local rank. The
    gradient is the sum over all targets in y, divided once by their number: experts
    drop no token, and no loss keeps them equally busy. Returns the summed losses of
    each rank's own tokens, once, where the last stage is in this process. Raises
    `InvalidInput` for fewer examples than replicas x micro-batches, for fewer tokens
    than ranks along `sequence`, and for a schedule that splits the backward pass in two
    halves (zero_bubble, zb_h2, zb_v) or places stages elsewhere.
    """
    mesh = placed.mesh
    step = Step(X, y, devices, lr, optimizer=optimizer, states=states, group=mesh.group)
    check_algorithm(algorithm)
    lists = mesh_lists(placed, schedule, micro_batches)
    replicas, experts = mesh.axes.get("data", 1), mesh.axes.get("expert", 1)
    bounds = _bounds(len(X), replicas * experts, micro_batches)

    step.clear_(placed)
    losses: list[tuple[int, Tensor]] = []  # with the rank that has it
    for place in range(replicas):
        replica_bounds = bounds[place * experts : (place + 1) * experts]
        replica = Replica(step, placed, replica_bounds, place, algorithm)
        if lines := replica.lines():
            stage_losses = Executor(replica, lines).run(lists)
            ranks = replica.local[placed.stages[-1].rank]
            for k in sorted(stage_losses):
                for rank, loss in zip(ranks, stage_losses[k], strict=True):
                    if not replica.place(rank, "tensor"):  # all along it have the same
                        losses.append((rank, loss))
    with step.span("all-reduce"):
        _sum_copies(placed, algorithm)
        parts = _sum_replicas(placed, algorithm)
    step.update_(parts)
    if placed.zero:
        for params, updated in zip(placed, gather_parts(placed, parts), strict=True):
            for p, x in zip(params, updated, strict=True):
                assign_(p, x)
    # In rank order, in which the losses of several processes are summed, too.
    return [loss for _, loss in sorted(losses, key=lambda pair: pair[0])]


def mesh_lists(
    placed: MeshParams, schedule: str | Schedule, micro_batches: int
) -> Lists:
    """Return the verified instructions of all ranks along `pipeline`."""
    group = placed.mesh.groups("pipeline")[0]
    lists, ranks = make_lists(schedule, len(placed.stages), micro_batches, group)
    halves = (BackwardInput, BackwardWeight)
    if ranks != [stage.rank for stage in placed.stages] or any(
        isinstance(i, halves) for rank_list in lists for i in rank_list
    ):
        raise InvalidInput(
            "expected a schedule with stage s at s mod p and whole backward passes, "
            "such as gpipe, 1f1b or interleaved, got another; train_stages, on one "
            "axis, has the others"
        )
    return lists


def _sum_copies(placed: MeshParams, algorithm: str | Plan) -> None:
    """Sum within each replica the partial gradients of ranks with different tokens.

    Along `sequence` those are the gradients of all parameters, along `expert` of all
    but the experts, which have received the tokens of all ranks.
    """
    partial = {"sequence": lambda spec: True, "expert": lambda spec: not spec.experts}
    for axis, stage in itertools.product(partial, placed.stages):
        if placed.mesh.axes.get(axis, 1) == 1:
            continue
        for j, (_, spec) in enumerate(stage.model.specs):
            if not partial[axis](spec):
                continue
            for group, places in of_stage(placed.mesh, stage, axis):
                grads = [_grad(placed.of_stage(i, stage)[j]) for i in places]
                start_allreduce(grads, algorithm, group).wait()


def _sum_replicas(placed: MeshParams, algorithm: str | Plan) -> list[list[Tensor]]:
    """Sum the gradients along `data`; return what each rank's optimizer updates."""
    parts = placed.parts()
    for group, places in placed.mesh.local("data"):
        for j in range(len(placed[places[0]])):
            grads = [_grad(placed[i][j]) for i in places]
            if not placed.zero:
                start_allreduce(grads, algorithm, group).wait()
                continue
            B = backend_of(grads[0])
            with B.pause():
                summed = reduce_scatter(grads, group)
            for i, grad in zip(places, summed, strict=True):
                B.attach_grad(parts[i][j])
                B.write_(B.grad(parts[i][j]), 0, element_count(grad), grad)
    return parts


def gather_parts(
    placed: MeshParams, parts: Sequence[Sequence[Tensor]]
) -> list[list[Tensor]]:
    """All-gather along `data` what ZeRO 1 shards, in the shapes of the parameters."""
    gathered: list[list[Tensor]] = [[] for _ in parts]
    for group, places in placed.mesh.local("data"):
        for j, p in enumerate(placed[places[0]]):
            shards = [parts[i][j] for i in places]
            with backend_of(p).pause():
                full = allgather(shards, group)
            for i, x in zip(places, full, strict=True):
                gathered[i].append(x.reshape(tuple(p.shape)))
    return gathered


def _grad(p: Tensor) -> Tensor:
    return backend_of(p).grad(p)


def _bounds(n: int, replicas: int, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Split a batch over the replicas, and each part into micro-batches."""
    if n // replicas < micro_batches:
        raise InvalidInput(
            f"cannot split {plural(n, 'example')} over {replicas} replicas of "
            f"{micro_batches} micro-batches each; use at least "
            f"{replicas * micro_batches} examples, or fewer micro-batches"
        )
    return [
        [(first + a, first + b) for a, b in micro_bounds(last - first, micro_batches)]
        for first, last in even_bounds(n, replicas)
    ]
