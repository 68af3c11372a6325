"""How long the computations of a pipeline take: what its clock is played with.

A schedule's messages are put in for these times, and a record is played on them.
Chapter: *model_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...checks import check_number
from ...errors import InvalidInput
from .instructions import Backward, BackwardInput, BackwardWeight, Forward, Instruction

Duration = float | Sequence[float]  # the same for all stages, or one for each


@dataclass(frozen=True)
class Durations:
    """How long one stage works on one micro-batch, in slots of a modelled clock.

    A number, or one for each stage. A backward pass does about twice the work of a
    forward pass: one half for the input's gradient, one for the weights'. Raises
    `InvalidInput` for a time that is negative or not finite.
    """

    forward: Duration = 1  #: of a forward pass
    backward: Duration = 2  #: of a whole backward pass
    backward_input: Duration = 1  #: of its first half
    backward_weight: Duration = 1  #: of its second half
    transfer: float = 0  #: of a message

    def __post_init__(self) -> None:
        """Check the times."""
        for field in fields(self):
            given = getattr(self, field.name)
            for time in given if isinstance(given, (list, tuple)) else [given]:
                check_number(field.name, time, min=0, hint="give slots")

    @property
    def uneven(self) -> bool:
        """Whether stages have times of their own."""
        return any(isinstance(getattr(self, f.name), Sequence) for f in fields(self))

    def of(self, instruction: Instruction, recompute: bool = False) -> float:
        """Give a computation's duration; `recompute` adds a forward pass to it."""
        kinds = {
            Forward: self.forward,
            Backward: self.backward,
            BackwardInput: self.backward_input,
            BackwardWeight: self.backward_weight,
        }
        found = _at(kinds[type(instruction)], instruction.stage)
        if recompute and isinstance(instruction, (Backward, BackwardInput)):
            found += _at(self.forward, instruction.stage)
        return found


def _at(duration: Duration, stage: int) -> float:
    if not isinstance(duration, Sequence):
        return duration
    if stage >= len(duration):
        raise InvalidInput(
            f"expected one time for every stage, got {len(duration)} and none for "
            f"stage {stage}; give a number for all, or one for each"
        )
    return duration[stage]
