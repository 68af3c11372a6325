"""Messages for a pipeline schedule, in an order in which none can wait for ever.

An engine's send may wait until its receiver is there. If each device listed its own
messages where they suit it best, two devices could wait for each other. So all messages
get *one* order for everybody, and each device lists its share of it: the first message
that is not done yet then always finds both of its ends waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ...checks import check_kind
from ...errors import PlanError
from .durations import Durations
from .instructions import (
    BackwardInput,
    BackwardWeight,
    Forward,
    Instruction,
    Lists,
    ReceiveActivation,
    ReceiveGradient,
    StageTransfer,
    Step,
    partner,
)
from .stage_ranks import stage_ranks

Name = tuple[str, int, int]  # what a computation makes: kind, stage, micro-batch
# Time, whether it is a computation, stage, micro-batch, device, and what happens.
Event = tuple[float, bool, int, int, int, Instruction]


def add_transfers(
    order: Sequence[Sequence[Instruction]], durations: Durations | None = None
) -> Lists:
    """Put sends, receives and a step at the end into what each device computes.

    Play it on a clock on which computations take their `durations` (a forward pass 1,
    a backward pass 2 if not given): what can happen first happens first. A message can
    when it is made and *both* its ends are between two computations, so that neither
    waits for the other. Where times are so crooked that the ends miss each other, it
    may be better to wait a little than to go on; both are played, and the earliest end
    wins. Raises `PlanError` where nobody can go on, and as `stage_ranks` does.
    """
    durations = Durations() if durations is None else durations
    check_kind("durations", durations, Durations, "Durations")
    ranks = stage_ranks(order)
    graces = [0.0]
    if durations.uneven:
        shortest = min(durations.of(i) for some in order for i in some)
        graces += [shortest / 4, shortest / 2]
    plays = [_Play(order, ranks, durations, grace) for grace in graces]
    best = min(plays, key=lambda play: max(play.free))  # of equal ones the first
    return [[*mine, Step()] for mine in best.lists]


class _Play:
    """One run of the clock; a computation gives way to messages for `grace`."""

    def __init__(
        self,
        order: Sequence[Sequence[Instruction]],
        ranks: Sequence[int],
        durations: Durations,
        grace: float,
    ) -> None:
        self.ranks, self.durations, self.grace = ranks, durations, grace
        self.lists: Lists = [[] for _ in order]
        self.free = [0.0] * len(order)  # from when on each device is
        self.left = [list(reversed(some)) for some in order]
        self.done: set[Name] = set()  # what is computed
        self.arrived: set[StageTransfer] = set()
        self.events: list[Event] = []  # what can happen, by its time
        for d in range(len(order)):
            self._offer_next(d)
        while self.events:
            then, *_, d, i = heappop(self.events)
            if self._time(d, i) > then:  # a device has begun something else meanwhile
                self._offer(d, i)
            elif isinstance(i, StageTransfer):
                self._exchange(d, i)
            else:
                self._compute(d, i)
        for d, some in enumerate(self.left):
            if some:
                raise PlanError(
                    f"device {d}, {some[-1]}: nobody can go on, because each device "
                    "waits for what another computes later"
                )

    def _time(self, d: int, i: Instruction) -> float:
        if isinstance(i, StageTransfer):
            return max(self.free[d], self.free[i.device])
        return self.free[d] + self.grace

    def _offer(self, d: int, i: Instruction) -> None:
        """Enter what can happen; at the same time messages come first."""
        compute = not isinstance(i, StageTransfer)
        heappush(self.events, (self._time(d, i), compute, i.stage, i.micro, d, i))

    def _offer_next(self, d: int) -> None:
        """Enter the device's next computation, if its inputs are there."""
        if not self.left[d]:
            return
        i = self.left[d][-1]
        receive = arrival(i, self.ranks)
        here = receive is None or receive in self.arrived
        if here and needs(i, self.ranks) <= self.done:
            self._offer(d, i)

    def _compute(self, d: int, i: Instruction) -> None:
        self.lists[d].append(self.left[d].pop())
        self.free[d] += self.durations.of(i)
        self.done.add(made(i))
        if receive := departure(i, self.ranks):
            self._offer(self.ranks[receive.stage], receive)
        self._offer_next(d)

    def _exchange(self, d: int, receive: StageTransfer) -> None:
        source = receive.device
        self.lists[source].append(partner(receive, d))
        self.lists[d].append(receive)
        end = self._time(d, receive) + self.durations.transfer
        self.free[source] = self.free[d] = end
        self.arrived.add(receive)
        if self.left[d] and arrival(self.left[d][-1], self.ranks) == receive:
            self._offer_next(d)


def made(instruction: Instruction) -> Name:
    """Name what a computation makes: an activation, a gradient, or nothing to send."""
    kind = "activation" if isinstance(instruction, Forward) else "gradient"
    if isinstance(instruction, BackwardWeight):
        kind = "weights"
    return kind, instruction.stage, instruction.micro


def awaited(instruction: Instruction) -> Name:
    """Name what a computation or a receive takes, of the stage before or after."""
    if isinstance(instruction, (Forward, ReceiveActivation)):
        return "activation", instruction.stage - 1, instruction.micro
    return "gradient", instruction.stage + 1, instruction.micro


def needs(instruction: Instruction, ranks: Sequence[int]) -> set[Name]:
    """Name what must have been made, here or elsewhere, before a computation."""
    stage, micro = instruction.stage, instruction.micro
    if isinstance(instruction, BackwardWeight):
        return {("gradient", stage, micro)}
    own = set() if isinstance(instruction, Forward) else {("activation", stage, micro)}
    name = awaited(instruction)
    return own | {name} if name[1] in range(len(ranks)) else own


def arrival(instruction: Instruction, ranks: Sequence[int]) -> StageTransfer | None:
    """Name the message that a computation waits for, or None."""
    stage, (kind, before, micro) = instruction.stage, awaited(instruction)
    elsewhere = before in range(len(ranks)) and ranks[before] != ranks[stage]
    if not elsewhere or isinstance(instruction, BackwardWeight):
        return None
    receive = ReceiveActivation if kind == "activation" else ReceiveGradient
    return receive(stage, micro, ranks[before])


def departure(instruction: Instruction, ranks: Sequence[int]) -> StageTransfer | None:
    """Name the message, as its receiver sees it, that a computation makes, or None."""
    if isinstance(instruction, Forward):
        after: Instruction = Forward(instruction.stage + 1, instruction.micro)
    elif isinstance(instruction, BackwardWeight):
        return None
    else:
        after = BackwardInput(instruction.stage - 1, instruction.micro)
    return arrival(after, ranks) if 0 <= after.stage < len(ranks) else None
