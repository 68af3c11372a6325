"""What a device of a pipeline can be told to do: instructions as data.

A network is cut into stages, numbered from the input on; stage s lies on device
s mod p. A batch is cut into micro-batches. Every instruction names both, so a list of
them can be run, checked, timed and drawn. Chapter: *model_parallel*.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instruction:
    """What a device does for one stage and one micro-batch, both from 0."""

    stage: int  #: from 0
    micro: int  #: micro-batch, from 0

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}(stage {self.stage}, micro-batch {self.micro})"


class Forward(Instruction):
    """Compute the stage's output, and keep what the way back will need."""


class Backward(Instruction):
    """From the output's gradient, get the weights' and the input's; then let go."""


class BackwardInput(Instruction):
    """The half of Backward that the stage before waits for: the input's gradient."""


class BackwardWeight(Instruction):
    """The half that nobody waits for: the weights' gradients; then let go."""


@dataclass(frozen=True)
class StageTransfer(Instruction):
    """A message of one stage, to or from another device."""

    device: int  #: at the other end

    def __str__(self) -> str:
        way = "to" if isinstance(self, (SendActivation, SendGradient)) else "from"
        return f"{super().__str__()[:-1]}, {way} device {self.device})"


class SendActivation(StageTransfer):
    """Give the stage's output to the device of the next stage."""


class ReceiveActivation(StageTransfer):
    """Take the stage's input from the device of the stage before."""


class SendGradient(StageTransfer):
    """Give the gradient of the stage's input to the device of the stage before."""


class ReceiveGradient(StageTransfer):
    """Take the gradient of the stage's output from the device of the next stage."""


@dataclass(frozen=True)
class Step:
    """Update the weights of all of the device's stages: every gradient is in."""

    def __str__(self) -> str:
        return "Step()"


AnyInstruction = Instruction | Step
Lists = list[list[AnyInstruction]]  # one list a device


def partner(instruction: StageTransfer, device: int) -> StageTransfer:
    """Give the other end's half of a transfer that `device` takes part in.

    >>> print(partner(SendActivation(1, 0, device=2), device=1))
    ReceiveActivation(stage 2, micro-batch 0, from device 1)
    """
    other = {
        SendActivation: (ReceiveActivation, 1),
        ReceiveActivation: (SendActivation, -1),
        SendGradient: (ReceiveGradient, -1),
        ReceiveGradient: (SendGradient, 1),
    }
    kind, ahead = other[type(instruction)]
    return kind(instruction.stage + ahead, instruction.micro, device)
