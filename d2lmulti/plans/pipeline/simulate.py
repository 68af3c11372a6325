"""Take the turns of all devices of a pipeline: who may do what next.

Real devices run at once; one process takes their instructions in an order in which they
may have happened. The strict way is *rendezvous*: a send waits until the receiver has
come to the matching receive, as it does in an engine without buffers.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from ...errors import PlanError
from .instructions import (
    AnyInstruction,
    ReceiveActivation,
    ReceiveGradient,
    SendActivation,
    SendGradient,
    StageTransfer,
    partner,
)

Sends = (SendActivation, SendGradient)
Receives = (ReceiveActivation, ReceiveGradient)


def simulate(
    lists: Sequence[Sequence[AnyInstruction]], rendezvous: bool = True
) -> Iterator[tuple[int, AnyInstruction]]:
    """Give (device, instruction) in an order in which they may happen, to the end.

    Messages between two devices arrive in the order in which they were sent. With
    `rendezvous` a send is directly followed by its receive; without, it never waits.
    Raises `PlanError` when a message is not the one that its receiver takes next, and
    when devices wait for each other.
    """
    at = [0] * len(lists)
    wires: dict[tuple[int, int], deque[StageTransfer]] = defaultdict(deque)

    def head(d: int) -> AnyInstruction | None:
        return lists[d][at[d]] if at[d] < len(lists[d]) else None

    def advance(d: int) -> Iterator[tuple[int, AnyInstruction]]:
        while (now := head(d)) is not None:
            if isinstance(now, Sends):
                _check_peer(d, now, len(lists))
                awaited, other = head(now.device), partner(now, d)
                if rendezvous and not _takes(awaited, from_device=d):
                    return  # the receiver is not there yet
                wires[d, now.device].append(other)
                at[d] += 1
                yield d, now
                if rendezvous:
                    yield from take(now.device)
            elif isinstance(now, Receives):
                _check_peer(d, now, len(lists))
                if rendezvous or not wires[now.device, d]:
                    return  # nothing has come yet
                yield from take(d)
            else:
                at[d] += 1
                yield d, now

    def take(d: int) -> Iterator[tuple[int, AnyInstruction]]:
        awaited = lists[d][at[d]]
        came = wires[awaited.device, d].popleft()  # type: ignore[union-attr]
        if came != awaited:
            raise PlanError(
                f"device {d}, instruction {at[d]}: expected {awaited}, but the next "
                f"message is for {came}; send in the order in which it is received"
            )
        at[d] += 1
        yield d, awaited

    moved = True
    while moved:
        moved = False
        for d in range(len(lists)):
            for turn in advance(d):
                moved = True
                yield turn
    stuck = {d: i for d in range(len(lists)) if (i := head(d)) is not None}
    if stuck:
        words = "; ".join(f"device {d} at {i}" for d, i in stuck.items())
        raise PlanError(f"deadlock, nobody can go on: {words}")
    for (source, target), left in wires.items():
        if left:
            raise PlanError(
                f"device {target}: {left[0]} is missing, but device {source} sent it"
            )


def _takes(awaited: AnyInstruction | None, from_device: int) -> bool:
    return isinstance(awaited, Receives) and awaited.device == from_device


def _check_peer(d: int, now: StageTransfer, devices: int) -> None:
    if now.device == d or now.device not in range(devices):
        raise PlanError(
            f"device {d}: {now} is a message to nobody; expected another device from "
            f"0 to {devices - 1}"
        )
