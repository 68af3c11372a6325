"""Execute instruction lists on tensors: one executor for all schedules.

Each stage records its own graph. The tensor sent to the next stage is detached; in the
backward pass the gradient that arrives starts `backward(ys, dys)`. A stage stores a
tensor until the instruction that uses it has run. Instructions are reported to
listeners, such as `PipelineTrace`. In a group of processes, each goes through all lists
and executes its own instructions. Chapter: *pipeline_parallel*.
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
    """A chain of ranks, one for each position of the pipeline.

    A pipeline on one axis has one line. On a mesh, where a stage is computed by several
    ranks, each of them sends to the rank at its own position in the next stage.
    """

    group: Group  # of the ranks of the line, in order of the positions
    devices: dict[int, AnyDevice]  # of this process's positions


class Run(NamedTuple):
    """The results of a stage's forward pass, one entry per local line."""

    outs: list[Tensor]  # outputs, or summed losses on the last stage
    saved: Sequence[Tensor]  # the activations that are stored
    backward: Callable[[list[Tensor], list[Tensor] | None], None]
    params: Sequence[Tensor] = ()  # for a backward pass in two halves


class Stages(Protocol):
    """What a strategy computes; lists have one entry per local line of the stage."""

    B: Backend
    count: int

    def inputs(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's examples for the first stage."""

    def targets(self, micro: int) -> list[Tensor]:
        """Load a micro-batch's targets for the last stage."""

    def forward(
        self, stage: int, micro: int, xs: list[Tensor], ys: list[Tensor] | None
    ) -> Run:
        """Compute the outputs, or on the last stage, with targets ys, the losses."""


class _Stored:
    """The activations of one micro-batch that a stage stores for its backward pass."""

    def __init__(self, xs: list[Tensor], ys: list[Tensor] | None) -> None:
        self.xs, self.ys = xs, ys
        self.run: Run | None = None
        self.dys: list[Tensor] | None = None  # gradients of the outputs

    @property
    def nbytes(self) -> int:
        saved = self.run.saved if self.run else ()
        return sum(nbytes(t) for t in (*self.xs, *saved, *(self.dys or ())))


class Executor:
    """The stages on their devices; `run` executes the instructions of one step.

    With `recompute` a stage stores its input only, and repeats the forward pass in the
    backward pass.
    """

    def __init__(
        self, stages: Stages, lines: Sequence[Line], recompute: bool = False
    ) -> None:
        self.stages, self.lines, self.recompute = stages, lines, recompute
        self.B, self.last = stages.B, stages.count - 1
        self.stored: dict[tuple[int, int], _Stored] = {}  # by stage and micro-batch
        # Tensors that no instruction has used yet, by the number of the line.
        self.values: dict[Name, dict[int, Tensor]] = {}
        self.losses: dict[int, list[Tensor]] = {}  # by micro-batch

    def run(
        self, lists: Lists, update: Callable[[int], None] | None = None
    ) -> dict[int, list[Tensor]]:
        """Execute the lists of all positions; return each micro-batch's summed losses.

        Only the process of the last stage has losses. `update(place)` updates the
        weights of the stages at a position.
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
                    # Only now do no local variables refer to its tensors.
                    del self.stored[i.stage, i.micro]
                    self._report_stored(place, i)
        return self.losses

    def _here(self, place: int) -> list[int]:
        """Return the numbers of the lines whose rank at a position is local."""
        return [j for j, line in enumerate(self.lines) if place in line.devices]

    def _transfer(self, place: int, i: StageTransfer) -> None:
        """Execute a receive and its send, as far as their ranks are local."""
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
        """Remove and return the tensors that a computation waits for."""
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
        stored = self.stored[i.stage, i.micro] = _Stored(xs, ys)
        run = self._run(i, stored, record=not self.recompute)
        outs = [self.B.detach(out) for out in run.outs]
        if not self.recompute:
            stored.run = run
        del run
        self._report_stored(place, i)
        return outs

    def _run(self, i: Instruction, stored: _Stored, record: bool) -> Run:
        B = self.B
        if record and i.stage:
            for x in stored.xs:
                B.attach_grad(x)
        with B.record() if record else B.pause():
            return self.stages.forward(i.stage, i.micro, stored.xs, stored.ys)

    def _backward(self, place: int, i: Instruction) -> list[Tensor]:
        """Run `Backward` or `BackwardInput`; return the gradients of the inputs."""
        B, stored = self.B, self.stored[i.stage, i.micro]
        if i.stage < self.last:
            stored.dys = self._take(i)
        if self.recompute:
            stored.run = self._run(i, stored, record=True)
        self._report_stored(place, i)
        outs, _, backward, _ = stored.run  # type: ignore[misc]
        if isinstance(i, Backward):
            backward(outs, stored.dys)
            return [B.grad(x) for x in stored.xs] if i.stage else []
        if not i.stage:
            return []
        return B.grad_of(outs, stored.xs, stored.dys, keep_graph=True)

    def _backward_weight(self, i: Instruction) -> None:
        B, stored = self.B, self.stored[i.stage, i.micro]
        outs, _, _, params = stored.run  # type: ignore[misc]
        grads = B.grad_of(outs, params, stored.dys)
        for p, dp in zip(params, grads, strict=True):
            B.write_(B.grad(p), 0, element_count(p), dp, add=True)

    def _report_stored(self, place: int, i: Instruction) -> None:
        """Report what the stage stores now, counted from its local tensors."""
        if observers.get():
            sizes = [
                stored.nbytes
                for (stage, _), stored in self.stored.items()
                if stage == i.stage
            ]
            notify("on_stored", place, i.stage, len(sizes), sum(sizes))
