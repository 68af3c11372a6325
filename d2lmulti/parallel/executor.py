"""Carry out instruction lists on real tensors: one executor for every schedule.

Each stage has a graph of its own. What is sent to the next stage is cut from the graph;
in the backward pass the gradient that arrives starts `backward(ys, dys)`. A stage
stores what an instruction made until another has used it, and no longer. What runs is
reported to listeners, such as `PipelineTrace`. In a group of processes each goes
through all lists and carries out its own instructions. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ..backends import element_count, nbytes
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..comm.collectives import copy_between, receive, send
from ..comm.group import Group
from ..events import notify, notify_work, observers
from ..plans.pipeline import (
    Backward,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    Name,
    Receives,
    Sends,
    StageTransfer,
    Step,
    awaited,
    made,
    simulate,
)


class Line(NamedTuple):
    """A chain of ranks, one for each place of the pipeline.

    A pipeline on one axis has one line. On a mesh, where a stage is computed by several
    ranks, each of them sends to the rank at its own position in the next stage.
    """

    group: Group  # of the ranks of the line, in order of the places
    devices: dict[int, AnyDevice]  # of this process's places


class Run(NamedTuple):
    """What a stage's forward pass left, one entry per local line."""

    outs: list[Tensor]  # outputs, or summed losses on the last stage
    saved: Sequence[Tensor]  # the activations that are stored
    backward: Callable[[list[Tensor], list[Tensor] | None], None]


class Stages(Protocol):
    """What a strategy computes; lists have one entry per local line of the stage."""

    B: Backend
    count: int

    def inputs(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's examples for the first stage."""

    def targets(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's targets for the last stage."""

    def params(self, stage: int) -> Sequence[Tensor]:
        """Return a stage's parameters."""

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        """Compute the outputs, or on the last stage, with targets ys, the losses."""


class _Kept:
    """What a stage stores of one micro-batch until its backward pass is done."""

    def __init__(self, xs: list[Tensor], ys: list[Tensor] | None) -> None:
        self.xs, self.ys = xs, ys
        self.run: Run | None = None
        self.dys: list[Tensor] | None = None  # gradients of the outputs

    @property
    def nbytes(self) -> int:
        """Bytes of the activations and gradients."""
        saved = self.run.saved if self.run else ()
        return sum(nbytes(t) for t in (*self.xs, *saved, *(self.dys or ())))


class Executor:
    """The stages on their devices; `run` carries out one step's instructions.

    With `recompute` a stage stores its input only, and runs forward again in the
    backward pass.
    """

    def __init__(
        self, stages: Stages, lines: Sequence[Line], recompute: bool = False
    ) -> None:
        self.stages, self.lines, self.recompute = stages, lines, recompute
        self.B, self.last = stages.B, stages.count - 1
        self.kept: dict[tuple[int, int], _Kept] = {}  # by stage and micro-batch
        # Made here and not used yet; by the number of the line.
        self.values: dict[Name, dict[int, Tensor]] = {}
        self.losses: dict[int, list[Tensor]] = {}  # by the micro-batch

    def run(
        self, lists: Lists, update: Callable[[int], None] | None = None
    ) -> dict[int, list[Tensor]]:
        """Carry out the lists of all places; return each micro-batch's summed losses.

        Only the process of the last stage has losses. `update(place)` updates the
        weights of a place's stages.
        """
        notify("on_pipeline", len(lists), self.last + 1, self.recompute)
        for place, i in simulate(lists):
            notify("on_instruction", place, i)
            if isinstance(i, Step):
                if update is not None:
                    update(place)
            elif isinstance(i, Receives):
                self._transfer(place, i)
            elif not isinstance(i, Sends) and self._here(place):
                devices = [self.lines[j].devices[place] for j in self._here(place)]
                name = f"{type(i).__name__.lower()} {i.micro}"
                with notify_work(devices, name, self.B.synchronize):
                    self._compute(place, i)
                if isinstance(i, (Backward, BackwardWeight)):
                    # Only here, when no variable of a method holds a tensor any more.
                    del self.kept[i.stage, i.micro]
                    self._report_stored(place, i)
        return self.losses

    def _here(self, place: int) -> list[int]:
        """Return the numbers of the lines whose rank at a place is in this process."""
        return [j for j, line in enumerate(self.lines) if place in line.devices]

    def _transfer(self, place: int, i: StageTransfer) -> None:
        """Carry out a receive and its send, as far as their ranks are here."""
        tensors, arrived = self.values.pop(awaited(i), {}), {}
        for j, (group, devices) in enumerate(self.lines):
            if place not in devices:
                if i.device in devices:
                    send(tensors[j], i.device, place, group)
            elif i.device in devices:
                arrived[j] = copy_between(
                    tensors[j], i.device, place, devices[place], group
                )
            else:
                arrived[j] = receive(self.B, i.device, place, devices[place], group)
        self.values[awaited(i)] = arrived

    def _take(self, i: Instruction) -> list[Tensor]:
        """Take what a computation waits for; from now on only the taker has it."""
        return [*self.values.pop(awaited(i)).values()]

    def _compute(self, place: int, i: Instruction) -> None:
        if isinstance(i, BackwardWeight):
            self._backward_weight(i)
            return
        forward = isinstance(i, Forward)
        outs = self._forward(place, i) if forward else self._backward(place, i)
        if forward and i.stage == self.last:
            self.losses[i.micro] = outs
        else:
            self.values[made(i)] = dict(zip(self._here(place), outs, strict=False))

    def _forward(self, place: int, i: Instruction) -> list[Tensor]:
        xs = self._take(i) if i.stage else self.stages.inputs(i.micro)
        ys = self.stages.targets(i.micro) if i.stage == self.last else None
        kept = self.kept[i.stage, i.micro] = _Kept(xs, ys)
        run = self._run(i, kept, record=not self.recompute)
        outs = [self.B.detach(out) for out in run.outs]
        if not self.recompute:
            kept.run = run
        del run
        self._report_stored(place, i)
        return outs

    def _run(self, i: Instruction, kept: _Kept, record: bool) -> Run:
        B = self.B
        if record and i.stage:
            for x in kept.xs:
                B.attach_grad(x)
        with B.record() if record else B.pause():
            return self.stages.forward(i.stage, i.micro, kept.xs, kept.ys)

    def _backward(self, place: int, i: Instruction) -> list[Tensor]:
        """Backward and BackwardInput: return the gradients of the stage's inputs."""
        B, kept = self.B, self.kept[i.stage, i.micro]
        if i.stage < self.last:
            kept.dys = self._take(i)
        if self.recompute:
            kept.run = self._run(i, kept, record=True)
        self._report_stored(place, i)
        outs, _, backward = kept.run  # type: ignore[misc]
        if isinstance(i, Backward):
            backward(outs, kept.dys)
            return [B.grad(x) for x in kept.xs] if i.stage else []
        return B.grad_of(outs, kept.xs, kept.dys, keep_graph=True) if i.stage else []

    def _backward_weight(self, i: Instruction) -> None:
        B, kept = self.B, self.kept[i.stage, i.micro]
        params = self.stages.params(i.stage)
        grads = B.grad_of(kept.run.outs, params, kept.dys)  # type: ignore[union-attr]
        for p, dp in zip(params, grads, strict=True):
            B.write_(B.grad(p), 0, element_count(p), dp, add=True)

    def _report_stored(self, place: int, i: Instruction) -> None:
        """Report what the stage stores now, counted from the tensors that are here."""
        if observers.get():
            kept = [kept for (stage, _), kept in self.kept.items() if stage == i.stage]
            size = sum(one.nbytes for one in kept)
            notify("on_stored", place, i.stage, len(kept), size)
