"""The frame of a training step, which every parallelism strategy fills in.

Check the arguments, split the batch, clear the gradients, run forward and backward on
one part of the batch after another, sum the gradients, update the parameters. The steps
between `clear_` and `update_` differ by strategy. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backends import backend_of, element_count, nbytes
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_count, check_ids, check_list, check_positive
from ..comm.group import Group, group_for, local_group, start_allreduce
from ..errors import InvalidInput, plural
from ..events import notify, notify_work, observers
from ..optimizers import SGD, Optimizer, check_states
from ..plans.rounds import Plan, even_bounds


def load(x: Tensor, device: AnyDevice) -> Tensor:
    """Copy `x` from the host to a device, into storage of its own."""
    copy = backend_of(x).copy_to(x, device)
    if observers.get():
        notify("on_load", nbytes(copy))
    return copy


def check_batch(X: Tensor, y: Tensor, vocabulary: int = 0) -> Backend:
    """Return the backend of a batch of equally many examples and integer labels.

    With a vocabulary, X holds ids below it, which are checked if X is on the CPU.
    `losses_of` checks that the labels are below the number of classes. Raises
    `InvalidInput` for another batch.
    """
    B = backend_of(X)
    _check_lengths(X, y)
    if "int" not in B.dtype_of(y):
        raise InvalidInput(
            f"expected labels y that are whole numbers, got {B.dtype_of(y)}; convert "
            "them to int64"
        )
    if vocabulary and B.device_of(X) == "cpu":
        check_ids(B.numpy(X), vocabulary)
    return B


def _check_lengths(X: Tensor, y: Tensor) -> None:
    if not tuple(X.shape) or not tuple(y.shape) or len(X) != len(y):
        raise InvalidInput(
            f"expected X and y with the same number of examples, got shapes "
            f"{tuple(X.shape)} and {tuple(y.shape)}; cut both from the same batch"
        )


def split_batch(
    X: Tensor, y: Tensor, devices: Sequence[AnyDevice], group: Group | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Split the batch X, y over the devices (D2L's `split_batch`).

    X (n, ...) and y (n, ...) are the *whole* batch; shard i holds n // k examples, and
    the first n % k shards hold one more. Nothing is dropped, and every shard is a copy
    on its device. Raises `InvalidInput` for an empty `devices`, if X and y differ in
    length, and for fewer examples than devices.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    group = group_for(len(devices), group)
    _check_lengths(X, y)
    if len(X) < group.size:
        raise InvalidInput(
            f"cannot split {plural(len(X), 'example')} over "
            f"{plural(group.size, 'device')}; use at least "
            f"{plural(group.size, 'example')} or fewer devices"
        )
    bounds = even_bounds(len(X), group.size)
    local_bounds = [bounds[rank] for rank in group.local_ranks]
    pairs = list(zip(local_bounds, devices, strict=True))
    X_shards, y_shards, wait = [], [], backend_of(X).synchronize
    for (first, last), device in pairs:
        with notify_work([device], "load", wait):
            X_shards.append(load(X[first:last], device))
            y_shards.append(load(y[first:last], device))
    return X_shards, y_shards


def by_device(losses: Sequence[Tensor], devices: int) -> list[Tensor]:
    """Reorder losses from part by part to device by device.

    Processes, whose lists are concatenated, then have the order of one process.
    """
    return [loss for i in range(devices) for loss in losses[i::devices]]


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
        self.optimizer = optimizer or SGD()
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
        check_count("accumulate", parts)
        group = self.group if self.whole else local_group(len(self.devices))
        X_shards, y_shards = split_batch(self.X, self.y, self.devices, group)
        if parts == 1:
            return [(X_shards, y_shards)]
        if (fewest := min(map(len, X_shards))) < parts:
            raise InvalidInput(
                f"cannot split the {fewest} examples of a device into {parts} parts; "
                "use a larger batch, fewer devices or fewer parts"
            )
        bounds = [even_bounds(len(x), parts) for x in X_shards]

        def part(shards: Sequence[Tensor], i: int) -> list[Tensor]:
            return [x[slice(*cut[i])] for x, cut in zip(shards, bounds, strict=True)]

        return [(part(X_shards, i), part(y_shards, i)) for i in range(parts)]

    def clear_(self, owned: Sequence[Sequence[Tensor]]) -> None:
        """Set all gradients to zero, because backward passes add to them."""
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
        """Report that a device, or by default all devices, work in the block."""
        devices = self.devices if device is None else [device]
        return notify_work(devices, name, self.B.synchronize)
