"""What the processes of a run must tell each other beside the training itself.

Each sees its own losses and messages only, and still every one ends with the same
history. All of it goes as short texts, which no ledger counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..cluster.ledger import Ledger
from ..comm.group import Group
from ..comm.patience import RankGone


def everyones(group: Group, value: Any) -> list[Any]:
    """Give each process's value, of plain JSON kinds, in rank order."""
    if not group.spread:
        return [value]
    return [json.loads(text) for text in group.transport.tell_all(json.dumps(value))]


def leader_does(group: Group, work: Callable[[], object]) -> None:
    """Let the process of rank 0 do it, and the others wait; fail together.

    Raises what the work raises, and `RankGone` in the other processes.
    """
    error: Exception | None = None
    if group.leader:
        try:
            work()
        except Exception as e:
            error = e
    told = everyones(group, str(error) if error else "")
    if error:
        raise error
    if told[0]:
        raise RankGone(
            f"expected rank 0 to look after the run's files, but it failed: {told[0]}"
        )


def add_up(loss: float, losses: Iterable[float]) -> float:
    """Add losses one by one, from left to right, to what there is already.

    Only so is the sum of an epoch also the sum of its parts, bit for bit: since Python
    3.12 the built-in `sum` carries the rounding errors along and drops them at its end.
    """
    for x in losses:
        loss += x
    return loss


class Tally:
    """Losses, seconds and bytes of an epoch, those of all processes together."""

    def __init__(self, group: Group, moved: Ledger) -> None:
        self.group, self.moved = group, moved
        self.losses: list[list[Tensor]] = []  # one list a step
        self.began = time.perf_counter()

    def settle(self, loss: float) -> tuple[float, float, int]:
        """Add the losses since the last call to `loss`; give seconds and bytes too.

        The sum takes the losses in the same order as in one process: step by step, and
        in each step rank by rank. Of messages each process counts those it received.
        """
        steps = [
            [float(backend_of(part).numpy(part)) for part in step]
            for step in self.losses
        ]
        self.losses.clear()
        seconds = time.perf_counter() - self.began
        if not self.group.spread:
            loss = add_up(loss, (x for step in steps for x in step))
            return loss, seconds, self.moved.bytes
        received = self.moved.received
        mine = sum(received[rank] for rank in self.group.local_ranks)
        told = everyones(self.group, [steps, seconds, mine])
        ordered = zip(*(theirs for theirs, _, _ in told), strict=True)
        loss = add_up(loss, (x for step in ordered for part in step for x in part))
        return loss, max(s for _, s, _ in told), sum(count for *_, count in told)
