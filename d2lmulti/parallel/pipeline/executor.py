"""Carry out a schedule on real tensors: one executor for every schedule.

Each stage has a graph of its own. What goes to the next stage is cut from the graph and
copied; on the way back the gradient that arrives starts `backward(ys, dys)`. A stage
keeps what an instruction made until another instruction has used it, and no longer.
In a group of processes each goes through all lists, carries out its own instructions,
and of the others' only notes when they would run. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor, element_count, nbytes
from ...comm.group import Group
from ...comm.point_to_point import copy_between, receive, send
from ...comm.split import load
from ...errors import PlanError, framework_errors
from ...models.model import losses_of
from ...observe.pipeline_record import PipelineRecord, Slot
from ...plans.pipeline import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    Name,
    Receives,
    StageTransfer,
    Step,
    awaited,
    made,
    simulate,
)
from .cutting import Stage


@dataclass
class Batch:
    """A batch and where it is cut: (first, last) example of every micro-batch."""

    X: Tensor
    y: Tensor
    bounds: Sequence[tuple[int, int]]
    input_grad: Tensor | None = None  # filled with the gradient of X, if there


class _Value(NamedTuple):
    """A tensor that another stage waits for: where it is, and since when."""

    tensor: Tensor | None  # None in another process
    device: int
    ready: float


@dataclass
class _Kept:
    """What a stage keeps of one micro-batch until its way back is done."""

    x: Tensor
    outputs: list[Tensor] = field(default_factory=list)  # of every layer
    dys: list[Tensor] | None = None  # the gradient that arrived; None for a loss
    target: Tensor | None = None  # on the last stage
    loss: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the activations and gradients that are kept."""
        return sum(nbytes(t) for t in (self.x, *self.outputs, *(self.dys or [])))

    @property
    def ys(self) -> list[Tensor]:
        """Where the way back through this stage begins."""
        return [self.outputs[-1] if self.loss is None else self.loss]


class Executor:
    """The stages on their devices; `run` carries out one step's instructions.

    `stage_params` are those of this process's stages, by the number of the stage.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        stage_params: Mapping[int, Sequence[Tensor]],
        devices: Sequence[AnyDevice],
        group: Group,
        record: PipelineRecord,
        recompute: bool = False,
    ) -> None:
        self.stages, self.stage_params = stages, stage_params
        self.devices = dict(zip(group.local_ranks, devices, strict=True))
        self.group, self.record, self.recompute = group, record, recompute
        self.B = backend_of(next(iter(stage_params.values()))[0])
        self.kept: dict[tuple[int, int], _Kept] = {}  # by stage and micro-batch
        self.values: dict[Name, _Value] = {}  # made, not used yet

    def run(
        self, lists: Lists, batch: Batch, step: Callable[[int], None]
    ) -> list[Tensor]:
        """Carry out the lists of all devices; return each micro-batch's summed loss.

        Only the process of the last stage has losses. `step(device)` updates the
        weights of a device's stages.
        """
        self.batch = batch
        self.losses: dict[int, Tensor] = {}
        self.record.restart(self.group.size, len(self.stages))
        for device, i in simulate(lists):
            if isinstance(i, Step):
                step(device)
            elif isinstance(i, Receives):
                self._receive(device, i)
            elif not isinstance(i, StageTransfer):  # a send: just before its receive
                end = self._compute(device, i)
                ends = isinstance(i, (Backward, BackwardWeight))
                if ends and device in self.devices:
                    # Only here, when no variable of a method holds a tensor any more.
                    del self.kept[i.stage, i.micro]
                    self._note(i.stage, device, end)
        return [self.losses[k] for k in sorted(self.losses)]

    # -- messages ----------------------------------------------------------------------

    def _receive(self, device: int, i: Instruction) -> None:
        name = awaited(i)
        tensor, source, _ = self.values[name]
        copy, here = None, self.devices.get(device)
        if source in self.devices and here is not None:
            copy = copy_between(tensor, source, device, here, self.group)
        elif here is not None:
            copy = receive(self.B, source, device, here, self.group)
        elif tensor is not None:
            send(tensor, source, device, self.group)
        ready = self.record.exchange(source, device)
        self.values[name] = _Value(copy, device, ready)

    def _take(self, name: Name, device: int) -> _Value:
        """Take what was made for this device; from now on only the taker has it."""
        value = self.values.pop(name, None)
        if value is None or value.device != device:
            kind, stage, micro = name
            raise PlanError(
                f"device {device}: expected the {kind} of stage {stage}, micro-batch "
                f"{micro}, to be here; check the schedule with verify_schedule"
            )
        return value

    def _load(self, whole: Tensor, micro: int, device: int) -> Tensor:
        """Copy a micro-batch's examples from the host to a device."""
        first, last = self.batch.bounds[micro]
        return load(whole[first:last], self.devices[device])

    # -- computations ------------------------------------------------------------------

    def _compute(self, device: int, i: Instruction) -> float:
        """Carry out a computation, or only note it: the modelled clock is everyone's.

        Tell when it ends.
        """
        verbs: dict[Any, Callable[..., Tensor | None]] = {
            Forward: self._forward,
            Backward: self._backward,
            BackwardInput: self._backward,
            BackwardWeight: self._backward_weight,
        }
        taken, found, ready, name = None, None, 0.0, awaited(i)
        waits = not isinstance(i, BackwardWeight)
        if waits and name[1] in range(len(self.stages)):
            taken, _, ready = self._take(name, device)
        slot = self.record.compute(device, i, ready, self.recompute)
        if device in self.devices:
            found = verbs[type(i)](i, taken, slot)
        if waits:
            self.values[made(i)] = _Value(found, device, slot.end)
        return slot.end

    def _forward(self, i: Instruction, x: Tensor | None, slot: Slot) -> Tensor | None:
        s, k, y = i.stage, i.micro, None
        kept = _Kept(self._load(self.batch.X, k, slot.device) if s == 0 else x)
        if s == len(self.stages) - 1:
            kept.target = self._load(self.batch.y, k, slot.device)
        self.kept[s, k] = kept
        self._run_layers(s, kept, recorded=not self.recompute)
        if kept.loss is not None:
            self.losses[k] = self.B.detach(kept.loss)
        else:
            y = self.B.detach(kept.outputs[-1])
        if self.recompute:  # the input is enough: the rest can be made again
            kept.outputs, kept.loss = [], None
        self._note(s, slot.device, slot.start)
        return y

    def _run_layers(self, s: int, kept: _Kept, recorded: bool) -> None:
        B, params, first = self.B, self.stage_params[s], 0
        if recorded and self._wants_dx(s):
            B.attach_grad(kept.x)
        recording = B.record() if recorded else B.pause()
        with recording, framework_errors(f"stage {s}", kept.x):
            H = kept.x
            for layer in self.stages[s].layers:
                H = layer.forward(B, params[first : first + layer.params], H)
                kept.outputs.append(H)
                first += layer.params
            if kept.target is not None:
                kept.loss = losses_of(B, H, kept.target, self.batch.y).sum()

    def _backward(self, i: Instruction, dy: Tensor | None, slot: Slot) -> Tensor | None:
        """Backward and BackwardInput: what comes from behind goes on to the front."""
        B, s, k = self.B, i.stage, i.micro
        kept = self.kept[s, k]
        kept.dys = None if dy is None else [dy]
        if self.recompute:
            self._run_layers(s, kept, recorded=True)
        self._note(s, slot.device, slot.start)
        dx = None
        if isinstance(i, Backward):
            B.backward(kept.ys, kept.dys)
            dx = B.grad(kept.x) if self._wants_dx(s) else None
        elif self._wants_dx(s):
            (dx,) = B.grad_of(kept.ys, [kept.x], kept.dys, keep_graph=True)
        if s == 0 and dx is not None:
            whole: Tensor = self.batch.input_grad
            first, last = self.batch.bounds[k]
            row = element_count(whole) // len(whole)
            B.write_(whole, first * row, last * row, dx)
        return dx if s > 0 else None

    def _backward_weight(self, i: Instruction, _: None, slot: Slot) -> None:
        B, kept = self.B, self.kept[i.stage, i.micro]
        params = self.stage_params[i.stage]
        grads = B.grad_of(kept.ys, params, kept.dys)
        for p, dp in zip(params, grads, strict=True):
            B.write_(B.grad(p), 0, element_count(p), dp, add=True)

    # -- what is held ------------------------------------------------------------------

    def _wants_dx(self, s: int) -> bool:
        return s > 0 or self.batch.input_grad is not None

    def _note(self, s: int, device: int, time: float) -> None:
        """Enter what the stage holds now, counted from the tensors that are here."""
        mine = [kept for (stage, _), kept in self.kept.items() if stage == s]
        size = sum(kept.nbytes for kept in mine)
        self.record.hold(time, device, s, len(mine), size)
