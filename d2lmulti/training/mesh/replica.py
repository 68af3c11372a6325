"""One replica: a pipeline whose stages are sub-groups with a part of each layer.

The instructions are those of any pipeline; each is carried out by all ranks of a
sub-group at once, which talk among themselves on the way. A message from one stage to
the next goes from each rank to the one at its own place along `tensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Backend, Tensor
from ...comm.cooperative import Segments, run_cooperatively
from ...comm.point_to_point import copy_between, receive, send
from ...comm.split import load
from ...errors import PlanError
from ...events import working
from ...models.checks import explained
from ...models.tensor_parallel.split import RankInfo, Talk, named, run_split
from ...plans.pipeline.instructions import (
    Backward,
    Forward,
    Lists,
    ReceiveActivation,
    ReceiveGradient,
    StageTransfer,
)
from ...plans.pipeline.simulate import simulate
from ...plans.rounds import Plan
from .holding import MeshParams, Stage

Name = tuple[str, int, int]  # activation or gradient, stage, micro-batch


class _Kept(NamedTuple):
    """What a stage keeps of a micro-batch until its way back, one entry a rank."""

    ins: list[Tensor]
    outs: list[Tensor]
    segments: Segments


class Replica:
    """The replica at a place along `data`, as far as this process has its ranks."""

    def __init__(
        self, placed: MeshParams, devices: Sequence[AnyDevice], at: int,
        algorithm: str | Plan,
    ) -> None:  # fmt: skip
        self.placed, self.devices, self.algorithm = placed, devices, algorithm
        self.B: Backend = backend_of(placed[0][0])
        mesh = placed.mesh
        self.tensor = mesh.axes.get("tensor", 1)
        self.ranks = [
            [mesh.rank(data=at, tensor=t, pipeline=p) for t in range(self.tensor)]
            for p in range(mesh.axes.get("pipeline", 1))
        ]
        local = mesh.group.local_ranks
        self.index = {rank: local.index(rank) for row in self.ranks for rank in row
                      if rank in local}  # fmt: skip

    def run(
        self, lists: Lists, X: Tensor, y: Tensor, bounds: Sequence[tuple[int, int]]
    ) -> list[Tensor]:
        """Leave the gradients of the summed loss; give the loss of each micro-batch.

        `bounds` are the micro-batches' examples in X and y. Only the process of the
        last stage's first rank gives losses.
        """
        self.batch, self.bounds = (X, y), bounds
        self.kept: dict[tuple[int, int], _Kept] = {}
        self.values: dict[Name, dict[int, Tensor]] = {}  # made, not used yet, by rank
        self.losses: list[Tensor] = []
        for p, i in simulate(lists):
            if isinstance(i, (ReceiveActivation, ReceiveGradient)):
                self._receive(p, i)
            elif isinstance(i, (Forward, Backward)) and self.here(p):
                stage = self.placed.stages[i.stage]
                there = [self.devices[self.index[rank]] for rank in self.here(p)]
                what = self._forward if isinstance(i, Forward) else self._backward
                name = f"{type(i).__name__.lower()} {i.micro}"
                with working(there, name, self.B.synchronize):
                    what(self.here(p), stage, i.stage, i.micro)
        return self.losses

    def here(self, p: int) -> list[int]:
        """Name this process's ranks at a place along `pipeline`."""
        return [rank for rank in self.ranks[p] if rank in self.index]

    def _receive(self, p: int, i: StageTransfer) -> None:
        """Carry a message from each rank there to the one beside it here."""
        forward = isinstance(i, ReceiveActivation)
        name = ("activation" if forward else "gradient",
                i.stage - 1 if forward else i.stage + 1, i.micro)  # fmt: skip
        made, arrived = self.values.pop(name, {}), {}
        for source, target in zip(self.ranks[i.device], self.ranks[p], strict=True):
            mine = source if source in self.index else target
            if mine not in self.index:
                continue
            group = self.placed.mesh.group_of("pipeline", mine)
            if target not in self.index:
                send(made[source], i.device, p, group)
                continue
            device = self.devices[self.index[target]]
            if source in self.index:
                x = copy_between(made[source], i.device, p, device, group)
            else:
                x = receive(self.B, i.device, p, device, group)
            arrived[target] = x
        self.values[name] = arrived

    def _take(self, kind: str, stage: int, micro: int, ranks: list[int]) -> list[Any]:
        """Take what a stage has made for these ranks, and nobody takes again."""
        made = self.values.pop((kind, stage, micro), {})
        if [*made] != ranks:
            raise PlanError(
                f"expected the {kind} of stage {stage}, micro-batch {micro}, on ranks "
                f"{ranks}, got it on {[*made]}; check the schedule with verify_schedule"
            )
        return [*made.values()]

    def _forward(self, ranks: list[int], stage: Stage, s: int, k: int) -> None:
        B, (X, y) = self.B, self.batch
        first, last = self.bounds[k]
        at = [self.index[rank] for rank in ranks]
        end = s == len(self.placed.stages) - 1
        if s:
            ins = self._take("activation", s - 1, k, ranks)
            for x in ins:
                B.attach_grad(x)
        else:
            ins = [load(X[first:last], self.devices[i]) for i in at]
        ys = [load(y[first:last], self.devices[i]) if end else None for i in at]
        group = self.placed.mesh.group_of("tensor", ranks[0])
        shape = (last - first, *tuple(X.shape)[1:])
        with B.record():
            talks = [
                _talk(B, stage, self.placed.of_stage(i, stage), x, target,
                      RankInfo(t, self.tensor, shape))
                for i, x, target, t in zip(at, ins, ys, group.local_ranks, strict=True)
            ]  # fmt: skip
            outs, segments = run_cooperatively(B, talks, group, self.algorithm)
        self.kept[s, k] = _Kept(ins, outs, segments)
        if not end:
            made = {rank: B.detach(x) for rank, x in zip(ranks, outs, strict=True)}
            self.values["activation", s, k] = made
        elif 0 in group.local_ranks:  # all ranks have the same loss
            self.losses.append(B.detach(outs[0]))

    def _backward(self, ranks: list[int], stage: Stage, s: int, k: int) -> None:
        ins, outs, segments = self.kept.pop((s, k))
        dys = None
        if s < len(self.placed.stages) - 1:
            dys = self._take("gradient", s + 1, k, ranks)
        segments.backward(outs, dys)
        if s:
            grads = {rank: self.B.grad(x) for rank, x in zip(ranks, ins, strict=True)}
            self.values["gradient", s, k] = grads


def _talk(
    B: Backend, stage: Stage, shards: Sequence[Tensor], X: Tensor, y: Tensor | None,
    part: RankInfo,
) -> Talk:  # fmt: skip
    """Run a stage's layers on one rank's parts; at the end also the loss."""
    model = stage.model
    with explained(model.name, X):
        out = yield from run_split(B, model, shards, X, part)
        if y is None:
            return out
        losses = yield from named("loss", model.loss(B, out, y, part))
        return losses.sum()
