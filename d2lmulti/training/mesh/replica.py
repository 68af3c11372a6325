"""One replica: a pipeline whose stages are ranks with a part of each layer.

The instructions are those of any pipeline; each is carried out by all ranks of a stage
at once, which talk among themselves on the way, along `tensor`, `sequence` and
`expert`. Along the last two they have other tokens: of the same examples, or other
examples. A message from one stage to the next goes from each rank to the one at its own
place on these axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Backend, Tensor
from ...comm.cooperative import Ranks, Segments, run_cooperatively
from ...comm.group import Group
from ...comm.point_to_point import copy_between, receive, send
from ...comm.split import load
from ...errors import PlanError
from ...events import notify_work
from ...models.tensor_parallel import RankInfo, SequencePart, run_to_loss
from ...parallel.sequence import token_positions
from ...plans.pipeline import (
    Backward,
    Forward,
    Lists,
    Name,
    Receives,
    StageTransfer,
    awaited,
    simulate,
)
from ...plans.rounds import Plan
from .holding import MeshParams, Stage
from .sequence import attend_by_ring


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
        self.places = [mesh.coordinates(rank) for rank in range(mesh.size)]
        mine = [rank for rank in range(mesh.size) if self._place(rank, "data") == at]
        self.ranks = [
            [rank for rank in mine if self._place(rank, "pipeline") == p]
            for p in range(mesh.axes.get("pipeline", 1))
        ]
        local = mesh.group.local_ranks
        self.index = {rank: local.index(rank) for row in self.ranks for rank in row
                      if rank in local}  # fmt: skip

    def run(
        self, lists: Lists, X: Tensor, y: Tensor,
        bounds: Sequence[Sequence[tuple[int, int]]],
    ) -> list[tuple[int, Tensor]]:  # fmt: skip
        """Leave the gradients of the summed loss; give the losses of the micro-batches.

        `bounds` are the micro-batches' examples in X and y, at each place along
        `expert`. Losses come from the last stage's ranks that are first along `tensor`,
        each that of its own tokens, with the rank.
        """
        self.batch, self.bounds = (X, y), bounds
        self.tokens = self._cut_tokens(X)
        self.kept: dict[tuple[int, int], _Kept] = {}
        self.values: dict[Name, dict[int, Tensor]] = {}  # made, not used yet, by rank
        self.losses: list[tuple[int, Tensor]] = []
        for p, i in simulate(lists):
            if isinstance(i, Receives):
                self._receive(p, i)
            elif isinstance(i, (Forward, Backward)) and self.here(p):
                stage = self.placed.stages[i.stage]
                there = [self.devices[self.index[rank]] for rank in self.here(p)]
                what = self._forward if isinstance(i, Forward) else self._backward
                name = f"{type(i).__name__.lower()} {i.micro}"
                with notify_work(there, name, self.B.synchronize):
                    what(self.here(p), stage, i.stage, i.micro)
        return self.losses

    def here(self, p: int) -> list[int]:
        """Name this process's ranks at a place along `pipeline`."""
        return [rank for rank in self.ranks[p] if rank in self.index]

    def _receive(self, p: int, i: StageTransfer) -> None:
        """Carry a message from each rank there to the one beside it here."""
        name = awaited(i)
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
        at = [self.index[rank] for rank in ranks]
        end = s == len(self.placed.stages) - 1
        if s:
            ins = self._take("activation", s - 1, k, ranks)
            for x in ins:
                B.attach_grad(x)
        else:
            ins = [self._own(X, rank, k) for rank in ranks]
        ys = [self._own(y, rank, k) if end else None for rank in ranks]
        with B.record():
            talks = [
                run_to_loss(B, stage.model, self.placed.of_stage(i, stage), x, target,
                            self._info(rank, k, tuple(X.shape)))
                for rank, i, x, target in zip(ranks, at, ins, ys, strict=True)
            ]  # fmt: skip
            talkers = Ranks(ranks, lambda axis: self._lines(ranks, axis or "tensor"))
            outs, segments = run_cooperatively(B, talks, talkers, self.algorithm)
        self.kept[s, k] = _Kept(ins, outs, segments)
        if not end:
            made = {rank: B.detach(x) for rank, x in zip(ranks, outs, strict=True)}
            self.values["activation", s, k] = made
            return
        for rank, loss in zip(ranks, outs, strict=True):
            if not self._place(rank, "tensor"):  # all along it have the same
                self.losses.append((rank, B.detach(loss)))

    def _backward(self, ranks: list[int], stage: Stage, s: int, k: int) -> None:
        ins, outs, segments = self.kept.pop((s, k))
        dys = None
        if s < len(self.placed.stages) - 1:
            dys = self._take("gradient", s + 1, k, ranks)
        segments.backward(outs, dys)
        if s:
            grads = {rank: self.B.grad(x) for rank, x in zip(ranks, ins, strict=True)}
            self.values["gradient", s, k] = grads

    def _place(self, rank: int, axis: str) -> int:
        return self.places[rank].get(axis, 0)

    def _lines(
        self, ranks: Sequence[int], axis: str
    ) -> Iterator[tuple[Group, list[int]]]:
        """Give the sub-groups along an axis among these ranks; see `Ranks`."""
        for group in self.placed.mesh.groups(axis):
            if group.ranks[0] in self.ranks[self._place(ranks[0], "pipeline")]:
                yield group, [ranks.index(group.ranks[i]) for i in group.local_ranks]

    def _cut_tokens(self, X: Tensor) -> list[SequencePart]:
        """Share the tokens of X out along `sequence`, in a zigzag; [] if it is 1."""
        ranks = self.placed.mesh.axes.get("sequence", 1)
        if ranks == 1:
            return []
        length = int(X.shape[1])
        at = token_positions(length, ranks)
        attend = attend_by_ring(at)
        return [SequencePart(mine, length, attend) for mine in at]

    def _own(self, x: Tensor, rank: int, k: int) -> Tensor:
        """Load what a rank has of a micro-batch: its examples, and of them its tokens.

        x is X or y, with one row an example, and one column a token.
        """
        first, last = self.bounds[self._place(rank, "expert")][k]
        device = self.devices[self.index[rank]]
        if not self.tokens:
            return load(x[first:last], device)
        at = self.tokens[self._place(rank, "sequence")].positions
        own = np.ascontiguousarray(self.B.numpy(x[first:last])[:, at])
        return self.B.array(own, device)

    def _info(self, rank: int, k: int, shape: tuple[int, ...]) -> RankInfo:
        axes = self.placed.mesh.axes
        first, last = self.bounds[self._place(rank, "expert")][k]
        own, shape = None, (last - first, *shape[1:])
        if self.tokens:
            own = self.tokens[self._place(rank, "sequence")]
            shape = last - first, len(own.positions)
        tensor, expert = axes.get("tensor", 1), axes.get("expert", 1)
        place, (_, y) = self._place(rank, "tensor"), self.batch
        return RankInfo(place, tensor, shape, expert, own, y)
