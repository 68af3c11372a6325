"""One replica: a pipeline whose stages are ranks with a part of each layer.

The pipeline's executor carries out the instructions; here is what a stage computes. All
its ranks compute at once and communicate along `tensor`, `sequence` and `expert`. Along
the last two they have different tokens: of the same examples, or of other examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ...backends import backend_of
from ...backends.protocol import Tensor
from ...comm.cooperative import Ranks, run_cooperatively
from ...comm.group import Group
from ...comm.split import load
from ...models.tensor_parallel import RankInfo, SequencePart, run_to_loss
from ...plans.rounds import Plan
from ..pipeline.executor import Line, Run
from ..sequence import ring_attention, token_positions
from ..step import Step
from .placement import MeshParams


class Replica:
    """The stages of the replica at a place along `data`, as far as they are here.

    `bounds` are the micro-batches' examples in X and y, for each place along `expert`.
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
        own = [rank for rank in range(mesh.size) if self.place(rank, "data") == at]
        self.ranks = [  # at each place along `pipeline`, all and those of this process
            [rank for rank in own if self.place(rank, "pipeline") == p]
            for p in range(mesh.axes.get("pipeline", 1))
        ]
        self.index = {rank: i for i, rank in enumerate(mesh.group.local_ranks)}
        self.here = [[r for r in row if r in self.index] for row in self.ranks]
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
        """Load each rank's examples, and of them its tokens."""
        ranks = self.here[self.placed.stages[0].rank]
        return [self._load(self.step.X, rank, micro) for rank in ranks]

    def targets(self, micro: int) -> list[Tensor]:
        """Load each rank's targets."""
        ranks = self.here[self.placed.stages[-1].rank]
        return [self._load(self.step.y, rank, micro) for rank in ranks]

    def params(self, stage: int) -> list[Tensor]:
        """Return a stage's parameters, of all its ranks here."""
        there = self.placed.stages[stage]
        at = [self.index[rank] for rank in self.here[there.rank]]
        return [p for i in at for p in self.placed.of_stage(i, there)]

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        """Run the stage's layers on all its ranks together, and at the end the loss."""
        there = self.placed.stages[stage]
        ranks = self.here[there.rank]
        passes = [
            run_to_loss(
                self.B,
                there.model,
                self.placed.of_stage(self.index[rank], there),
                x,
                ys[i] if ys is not None else None,
                self._info(rank, micro),
            )
            for i, (rank, x) in enumerate(zip(ranks, xs, strict=True))
        ]
        talkers = Ranks(ranks, lambda axis: self._groups(ranks, axis or "tensor"))
        outs, segments = run_cooperatively(self.B, passes, talkers, self.algorithm)
        return Run(outs, outs, segments.backward)

    def place(self, rank: int, axis: str) -> int:
        """Return the coordinate of a rank along an axis."""
        return self.places[rank].get(axis, 0)

    def _groups(
        self, ranks: Sequence[int], axis: str
    ) -> Iterator[tuple[Group, list[int]]]:
        """Yield the sub-groups along an axis among these ranks; see `Ranks`."""
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
        return [SequencePart(own, length, attend) for own in positions]

    def _load(self, x: Tensor, rank: int, micro: int) -> Tensor:
        """Load a rank's part of X or y: one row per example, one column per token."""
        first, last = self.bounds[self.place(rank, "expert")][micro]
        device = self.step.devices[self.index[rank]]
        if not self.tokens:
            return load(x[first:last], device)
        at = self.tokens[self.place(rank, "sequence")].positions
        own = np.ascontiguousarray(self.B.numpy(x[first:last])[:, at])
        return self.B.array(own, device)

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
    """Make the function of an `Apply` that attends to all tokens along `sequence`.

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
            found = attended.backward([_swap(grad) for grad in grads])
            return [
                B.concat([_swap(d) for d in of_rank])
                for of_rank in zip(*found, strict=True)
            ]

        return [_swap(x) for x in attended.outputs], backward

    return attend


def _swap(x: Tensor) -> Tensor:
    """Swap heads and tokens, in new storage."""
    B = backend_of(x)
    return B.copy_to(B.transpose(x, (1, 0, 2)), B.device_of(x))
