"""What the processes of a run must tell each other beside the training itself.

Each sees its own losses and messages only, and still every one ends with the same
history. All of it goes as short texts, which no ledger counts.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..comm.group import Group
from ..errors import Diverged, PeerError
from ..observe.ledger import Ledger


def allgather_values(group: Group, value: Any) -> list[Any]:
    """Give each process's value, of plain JSON kinds, in rank order."""
    if not group.is_distributed:
        return [value]
    return [json.loads(text) for text in group.engine.allgather_text(json.dumps(value))]


def leader_does(group: Group, work: Callable[[], object]) -> None:
    """Let the process of rank 0 do it, and the others wait; fail together.

    Raises what the work raises, and `PeerError` in the other processes.
    """
    error: Exception | None = None
    if group.leader:
        try:
            work()
        except Exception as e:
            error = e
    gathered = allgather_values(group, str(error) if error else "")
    if error:
        raise error
    if gathered[0]:
        raise PeerError(
            f"expected rank 0 to look after the run's files, but it failed: "
            f"{gathered[0]}"
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

    def __init__(self, group: Group, moved: Ledger, epoch: int, step: int) -> None:
        self.group, self.moved = group, moved
        self.epoch, self.step = epoch, step  # where the run stands, both from 0
        self.losses: list[list[Tensor]] = []  # one list a step
        self.targets: list[int] = []  # how many they are summed over, in all processes
        self.finite: float | None = None  # the last loss that was
        self.began = time.perf_counter()

    def settle(self, loss: float) -> tuple[float, float, int]:
        """Add the losses since the last call to `loss`; give seconds and bytes too.

        The sum takes the losses in the same order as in one process: step by step, and
        in each step rank by rank. Of messages each process counts those it received.
        Raises `Diverged` for a loss that is not finite.
        """
        steps = [
            [float(backend_of(part).numpy(part)) for part in step]
            for step in self.losses
        ]
        self.losses.clear()
        seconds, count = time.perf_counter() - self.began, self.moved.bytes
        if self.group.is_distributed:
            received = self.moved.received
            mine = sum(received[rank] for rank in self.group.local_ranks)
            gathered = allgather_values(self.group, [steps, seconds, mine])
            ordered = zip(*(theirs for theirs, _, _ in gathered), strict=True)
            steps = [[x for part in step for x in part] for step in ordered]
            seconds = max(theirs for _, theirs, _ in gathered)
            count = sum(theirs for *_, theirs in gathered)
        self._check(steps)
        return add_up(loss, (x for step in steps for x in step)), seconds, count

    def _check(self, steps: list[list[float]]) -> None:
        """Stop at the first loss that is not finite."""
        for step, targets in zip(steps, self.targets, strict=True):
            mean = add_up(0.0, step) / targets
            self.step += 1
            if not math.isfinite(mean):
                before = "there was none before"
                if self.finite is not None:
                    before = f"the last one before was {self.finite:.4g}"
                raise Diverged(
                    f"expected a finite loss, got {mean} in epoch {self.epoch + 1}, "
                    f"step {self.step}; {before}. Try a learning rate of a tenth, and "
                    "look for very large numbers in the data"
                )
            self.finite = mean
        self.targets.clear()


def check_state(arrays: Iterable[np.ndarray], when: str) -> None:
    """Raise `Diverged` for a number of the run's state that is not finite."""
    for i, array in enumerate(arrays):
        if not np.isfinite(array).all():
            raise Diverged(
                f"expected finite numbers, got nan or inf in array {i} of parameters "
                f"and optimizer state {when}, though the losses were finite; try a "
                "learning rate of a tenth"
            )
