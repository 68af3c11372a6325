"""A pipeline as data: the computations, sends, and receives of each device, in order.

A network is cut into stages, a batch into micro-batches. A schedule (`schedules.py`) is
one list of instructions per device, independent of framework and tensors. So the same
lists are verified, executed, timed, and drawn. Chapter: *pipeline_parallel*.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from heapq import heappop, heappush

from ..checks import MAX_RANKS, check_count, check_number
from ..errors import PlanError

# -- instructions ----------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    """One instruction of a device, for one stage and one micro-batch."""

    stage: int  #: from 0, at the input
    micro: int  #: micro-batch, from 0

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}(stage {self.stage}, micro-batch {self.micro})"


class Forward(Instruction):
    """Compute the stage's output, and store the activations for the backward pass."""


class Backward(Instruction):
    """Compute the gradients of the stage's weights and input, then free memory."""


class BackwardInput(Instruction):
    """Compute the input's gradient: the half that the previous stage waits for."""


class BackwardWeight(Instruction):
    """Compute the weights' gradients, the other half; then free memory."""


@dataclass(frozen=True)
class StageTransfer(Instruction):
    """One end of a message between the devices of neighboring stages."""

    device: int  #: at the other end

    def __str__(self) -> str:
        direction = "to" if isinstance(self, Sends) else "from"
        return f"{super().__str__()[:-1]}, {direction} device {self.device})"


class SendActivation(StageTransfer):
    """Send the stage's output to the device of the next stage."""


class ReceiveActivation(StageTransfer):
    """Receive the stage's input from the device of the previous stage."""


class SendGradient(StageTransfer):
    """Send the gradient of the stage's input to the device of the previous stage."""


class ReceiveGradient(StageTransfer):
    """Receive the gradient of the stage's output from the device of the next stage."""


@dataclass(frozen=True)
class Step:
    """Update the weights of all the device's stages: every gradient is complete."""

    def __str__(self) -> str:
        return "Step()"


Sends, Receives = (SendActivation, SendGradient), (ReceiveActivation, ReceiveGradient)
AnyInstruction = Instruction | Step
Lists = list[list[AnyInstruction]]  # one list per device
Order = list[list[Instruction]]  # the computations alone
Name = tuple[str, int, int]  # of a tensor: kind, stage that made it, micro-batch


def made(i: Instruction) -> Name:
    """Return the name of the tensor that a computation makes."""
    kind = {Forward: "activation", BackwardWeight: "weights"}.get(type(i), "gradient")
    return kind, i.stage, i.micro


def awaited(i: Instruction) -> Name:
    """Return the name of the tensor of another stage that an instruction uses."""
    if isinstance(i, (Forward, ReceiveActivation)):
        return "activation", i.stage - 1, i.micro
    return "gradient", i.stage + 1, i.micro


def needs(i: Instruction, ranks: Sequence[int]) -> set[Name]:
    """Return the tensors that must have been computed before, on any device."""
    if isinstance(i, BackwardWeight):
        return {("gradient", i.stage, i.micro)}
    needed = set() if isinstance(i, Forward) else {("activation", i.stage, i.micro)}
    return needed | ({awaited(i)} if awaited(i)[1] in range(len(ranks)) else set())


def arrival(i: Instruction, ranks: Sequence[int]) -> StageTransfer | None:
    """Return the receive that a computation waits for; None if its input is local."""
    kind, source, micro = awaited(i)
    if isinstance(i, BackwardWeight) or source not in range(len(ranks)):
        return None
    if ranks[source] == ranks[i.stage]:
        return None
    receive = ReceiveActivation if kind == "activation" else ReceiveGradient
    return receive(i.stage, micro, ranks[source])


def send_of(receive: StageTransfer, device: int) -> StageTransfer:
    """Return the sender's half of a message that `device` receives.

    >>> print(send_of(ReceiveActivation(2, 0, device=1), device=2))
    SendActivation(stage 1, micro-batch 0, to device 2)
    """
    if isinstance(receive, ReceiveActivation):
        return SendActivation(receive.stage - 1, receive.micro, device)
    return SendGradient(receive.stage + 1, receive.micro, device)


def stage_ranks(
    lists: Sequence[Sequence[AnyInstruction]], stages: int | None = None
) -> list[int]:
    """Return the rank that computes each stage, read from the lists.

    `stages` is their number; without it, the highest one in the lists is the last.
    Raises `PlanError`, which names the device and the instruction, for a stage on two
    ranks or on none, for one out of range, and for a rank without a stage.

    >>> from d2lmulti.plans.schedules import SCHEDULES
    >>> stage_ranks(SCHEDULES["interleaved"](2, 2, chunks=2))
    [0, 1, 0, 1]
    >>> stage_ranks(SCHEDULES["zb_v"](2, 2))
    [0, 1, 1, 0]
    """
    owner: dict[int, int] = {}
    for d, device_list in enumerate(lists):
        for i in device_list:
            if isinstance(i, Step):
                continue
            if not isinstance(i, Instruction):
                raise PlanError(f"device {d}: expected an instruction, got {i!r:.80}")
            if i.stage < 0 or stages is not None and i.stage >= stages:
                end = "on" if stages is None else f"to {stages - 1}"
                raise PlanError(f"device {d}, {i}: expected a stage from 0 {end}")
            if not isinstance(i, StageTransfer) and owner.setdefault(i.stage, d) != d:
                raise PlanError(
                    f"device {d}, {i}: stage {i.stage} lies on device {owner[i.stage]}"
                )
    count = max(owner, default=-1) + 1 if stages is None else stages
    for stage in range(count):
        if stage not in owner:
            raise PlanError(f"no device computes stage {stage}; each stage needs one")
    for d in range(len(lists)):
        if d not in owner.values():
            raise PlanError(f"device {d} computes no stage; each device needs one")
    return [owner[stage] for stage in range(count)]


# -- from computations to complete lists -----------------------------------------------


@dataclass(frozen=True)
class Durations:
    """How long a stage computes one micro-batch, in slots of a modeled clock.

    A backward pass does about twice the work of a forward pass: one half for the
    input's gradient, one for the weights'. Raises `InvalidInput` for a negative time.
    """

    forward: float = 1  #: of a forward pass
    backward: float = 2  #: of a whole backward pass
    backward_input: float = 1  #: of its first half
    backward_weight: float = 1  #: of its second half
    transfer: float = 0  #: of a message

    def __post_init__(self) -> None:
        for slots in astuple(self):
            check_number("a duration", slots, min=0, hint="give slots")

    def of(self, i: Instruction, recompute: bool = False) -> float:
        """Return a computation's duration; `recompute` adds a forward pass to it."""
        kinds = {
            Forward: self.forward,
            Backward: self.backward,
            BackwardInput: self.backward_input,
            BackwardWeight: self.backward_weight,
        }
        recomputed = recompute and isinstance(i, (Backward, BackwardInput))
        return kinds[type(i)] + (self.forward if recomputed else 0)


def add_transfers(
    order: Sequence[Sequence[Instruction]], durations: Durations | None = None
) -> Lists:
    """Insert the messages, and a step at the end, into the order of each device.

    An engine's send may block until its receiver is ready, so all messages have *one*
    order on all devices: both ends of the first unfinished message are then waiting for
    it. The order is that of a modeled clock on which each event happens as early as
    possible, and at a tie messages come first. Raises
    `PlanError` where no device can continue, and as `stage_ranks` does.
    """
    durations = Durations() if durations is None else durations
    ranks = stage_ranks(order)
    lists: Lists = [[] for _ in order]
    remaining = [deque(device_order) for device_order in order]
    free = [0.0] * len(order)  # the time from which each device is free
    done: set[Name] = set()
    arrived: set[StageTransfer] = set()
    receives = {arrival(i, ranks) for device_order in order for i in device_order}
    receive_of = {awaited(r): r for r in receives if r is not None}
    # Time, whether it is a computation, stage, micro-batch, device, instruction.
    events: list[tuple[float, bool, int, int, int, Instruction]] = []

    def time_of(d: int, i: Instruction) -> float:
        return max(free[d], free[i.device]) if isinstance(i, StageTransfer) else free[d]

    def offer(d: int, i: Instruction) -> None:
        computes = not isinstance(i, StageTransfer)
        heappush(events, (time_of(d, i), computes, i.stage, i.micro, d, i))

    def offer_next(d: int) -> None:
        """Offer the device's next computation, if its inputs have arrived."""
        if remaining[d]:
            i = remaining[d][0]
            receive = arrival(i, ranks)
            if (receive is None or receive in arrived) and needs(i, ranks) <= done:
                offer(d, i)

    for d in range(len(order)):
        offer_next(d)
    while events:
        planned, *_, d, i = heappop(events)
        if time_of(d, i) > planned:  # a device has begun another instruction meanwhile
            offer(d, i)
        elif isinstance(i, StageTransfer):
            lists[i.device].append(send_of(i, d))
            lists[d].append(i)
            free[d] = free[i.device] = planned + durations.transfer
            arrived.add(i)
            if remaining[d] and arrival(remaining[d][0], ranks) == i:
                offer_next(d)
        else:
            lists[d].append(remaining[d].popleft())
            free[d] += durations.of(i)
            done.add(made(i))
            if receive := receive_of.get(made(i)):
                offer(ranks[receive.stage], receive)
            offer_next(d)
    for d, queue in enumerate(remaining):
        if queue:
            raise PlanError(
                f"device {d}, {queue[0]}: no device can continue, because each waits "
                "for a result that another computes later"
            )
    return [[*device_list, Step()] for device_list in lists]


def simulate(
    lists: Sequence[Sequence[AnyInstruction]],
) -> Iterator[tuple[int, AnyInstruction]]:
    """Yield (device, instruction) in a possible order of execution.

    A send waits for the matching receive (rendezvous) and is directly followed by it.
    Lists that complete with such sends also complete with buffered sends, with the same
    result.
    Raises `PlanError` for a deadlock, and for a message that is not the one that its
    receiver takes next.
    """
    remaining = [deque(device_list) for device_list in lists]
    progress = True
    while progress:
        progress = False
        for d, queue in enumerate(remaining):
            while queue and not isinstance(i := queue[0], Receives):
                if isinstance(i, Sends) and not _receiver_is_there(i, d, remaining):
                    break
                yield d, queue.popleft()
                if isinstance(i, Sends):
                    yield i.device, remaining[i.device].popleft()
                progress = True
    stuck = [f"device {d} at {queue[0]}" for d, queue in enumerate(remaining) if queue]
    if stuck:
        raise PlanError(f"deadlock, no device can continue: {'; '.join(stuck)}")


def _receiver_is_there(
    send: StageTransfer, device: int, remaining: Sequence[deque[AnyInstruction]]
) -> bool:
    """Return whether the receiver's next instruction is the receive of this message."""
    if send.device == device or send.device not in range(len(remaining)):
        raise PlanError(
            f"device {device}: {send} has no receiver; expected another device "
            f"from 0 to {len(remaining) - 1}"
        )
    head = remaining[send.device][0] if remaining[send.device] else None
    if not isinstance(head, Receives) or head.device != device:
        return False
    if send_of(head, send.device) != send:
        raise PlanError(
            f"device {send.device}: expected {head}, but the next message is {send}; "
            "send in the order in which it is received"
        )
    return True


def verify_schedule(
    lists: Sequence[Sequence[AnyInstruction]], stages: int, micro_batches: int
) -> None:
    """Check the lists of all devices without a tensor.

    Every computation must happen once, on the device that has the stage; every input
    must be available before it is used; every message must be sent and received once;
    and no device may deadlock. Raises `PlanError` with the device and the instruction.
    """
    ranks = stage_ranks(lists, check_count("stages", stages, max=MAX_RANKS))
    check_count("micro_batches", micro_batches, max=MAX_RANKS)
    expected = _expected(lists, ranks, micro_batches)
    for d, device_list in enumerate(lists):
        count = Counter(device_list)
        for i in [*expected[d], *count]:
            if count[i] != expected[d][i]:
                times = f"{expected[d][i]} time{'s' * (expected[d][i] != 1)}"
                raise PlanError(f"device {d}: expected {times} {i}, got {count[i]}")
        if device_list[-1] != Step():
            raise PlanError(f"device {d}: expected one Step(), at the end")
    done: set[Name] = set()
    arrived: set[AnyInstruction] = set()
    for d, i in simulate(lists):
        if isinstance(i, Receives):
            arrived.add(i)
        elif isinstance(i, Sends):
            kind = "activation" if isinstance(i, SendActivation) else "gradient"
            if (kind, i.stage, i.micro) not in done:
                raise PlanError(f"device {d}, {i}: it is sent before it is computed")
        elif isinstance(i, Instruction):
            receive = arrival(i, ranks)
            if receive and receive not in arrived:
                raise PlanError(f"device {d}, {i}: it comes before {receive}")
            for kind, stage, micro in sorted(needs(i, ranks) - done):
                raise PlanError(
                    f"device {d}, {i}: it comes before the {kind} of stage {stage}, "
                    f"micro-batch {micro}, is computed"
                )
            done.add(made(i))


def _expected(
    lists: Sequence[Sequence[AnyInstruction]], ranks: Sequence[int], m: int
) -> list[Counter[AnyInstruction]]:
    """Count the instructions that each list needs; backward is whole or in halves."""
    expected = [Counter[AnyInstruction]([Step()]) for _ in lists]
    present = [set(device_list) for device_list in lists]
    for stage, d in enumerate(ranks):
        for k in range(m):
            halves = [BackwardInput(stage, k), BackwardWeight(stage, k)]
            halved = any(half in present[d] for half in halves)
            for i in (Forward(stage, k), *(halves if halved else [Backward(stage, k)])):
                expected[d][i] += 1
                if receive := arrival(i, ranks):
                    expected[d][receive] += 1
                    expected[receive.device][send_of(receive, d)] += 1
    return expected
