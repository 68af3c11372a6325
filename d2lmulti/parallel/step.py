"""The frame of a training step, which every parallelism strategy fills in.

Check the arguments, split the batch, clear the gradients, run forward and backward on
one part of the batch after another, sum the gradients, update the parameters. Between
`clear_` and `update_` stands what is a strategy's own. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backends import element_count
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_count, check_list, check_positive
from ..comm.allreduce import start_allreduce
from ..comm.group import Group, group_for, local_group
from ..comm.split import check_batch, split_in_parts
from ..events import notify_work
from ..optimizers import Optimizer, check_optimizer, check_states
from ..plans.rounds import Plan


class Step:
    """One training step on the batch X (m, ...), y (m, ...).

    `n`: the number of targets in the whole batch, by which the summed gradient is
    divided; given where X and y are only this process's part of the batch. `states` has
    one list per device, or, if their number is given, one per stage. Raises
    `InvalidInput` for arguments that would hang or train wrongly.
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        devices: Sequence[AnyDevice],
        lr: float,
        *,
        optimizer: Optimizer | None = None,
        states: Sequence[Sequence[Tensor]] | None = None,
        group: Group | None = None,
        n: int | None = None,
        vocabulary: int = 0,
        stages: int | None = None,
    ) -> None:
        check_list("devices", devices, "devices", hint="use devices(1)")
        self.B = check_batch(X, y, vocabulary)
        self.X, self.y, self.devices = X, y, devices
        self.optimizer = check_optimizer(optimizer)
        if stages is None:
            self.states = check_states(states, len(devices))
        else:
            self.states = check_states(states, stages, "stage")
        self.lr = check_positive("lr", lr, "try 0.05")
        self.group = group_for(len(devices), group)
        self.whole = n is None  # whether X and y are the whole batch
        self.n = element_count(y) if n is None else check_count("n", n)

    def split(self, parts: int = 1) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Split the batch over the devices, and each shard into parts.

        Returns for each part the (X, y) of all local devices. Raises `InvalidInput` as
        `split_batch` does, and for a shard with fewer examples than parts.
        """
        group = self.group if self.whole else local_group(len(self.devices))
        return split_in_parts(self.X, self.y, self.devices, group, parts)

    def clear_(self, owned: Sequence[Sequence[Tensor]]) -> None:
        """Set all gradients to zero: backward passes add to them."""
        for params in owned:
            for p in params:
                self.B.clear_grad_(p)

    def allreduce_(
        self, owned: Sequence[Sequence[Tensor]], algorithm: str | Plan
    ) -> None:
        """Sum every parameter's gradients over the devices, in place."""
        with self.span("all-reduce"):
            for same_parameter in zip(*owned, strict=True):
                grads = [self.B.grad(p) for p in same_parameter]
                start_allreduce(grads, algorithm, self.group).wait()

    def update_(self, owned: Sequence[Sequence[Tensor]]) -> None:
        """Let the optimizer update each device's parameters from their gradients."""
        for i, (params, device) in enumerate(zip(owned, self.devices, strict=True)):
            with self.span("update", device):
                self.optimizer.step_(params, self.states[i], self.lr, n=self.n)

    def span(
        self, name: str, device: AnyDevice | None = None
    ) -> AbstractContextManager[Any]:
        """Report that a device, or without one all of them, work in the block."""
        devices = self.devices if device is None else [device]
        return notify_work(devices, name, self.B.synchronize)
