"""A training step on shards: data parallelism, by reduce-scatter and all-gather."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import backend_of, element_count
from ...backends.protocol import AnyDevice, Tensor
from ...checks import check_lists, check_positive
from ...comm.group import Group
from ...comm.split import by_device
from ...optimizers import Optimizer
from ..step import Step
from .collectives import gather_flat_
from .forward_backward import ForwardBackward
from .sharded_params import ShardedParams, attach_grads, check_sharded


def train_shards(
    X: Tensor,
    y: Tensor,
    sharded: ShardedParams,
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    group: Group | None = None,
    n: int | None = None,
    loss_scale: float = 1.0,
    accumulate: int = 1,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices as in `train_batch`.

    X (n, ...), y (n, ...): the whole batch, or, in a group of processes and with `n`,
    the number of targets of the whole batch, this process's part of it. sharded: from
    `shard_params`, updated in place; `states`: the optimizer's, of `sharded.parts()`.

    A reduce-scatter per layer sums the gradients. ZeRO 1 and 2 end with an all-gather
    of the updated shards; ZeRO 3 gathers a layer before each use. So N elements, N_last
    of them in the last layer, on k devices cost 2 (k - 1) N, with ZeRO 3 (k - 1)
    (3 N - N_last), because the last layer runs backward at once. With ZeRO 2 and 3 at
    most one layer's gradients (with ZeRO 3, parameters) are unsharded at a time. They
    store only the inputs of the layers and compute each layer again in the backward
    pass.

    In mixed precision (see `shard_params`) the loss and the update are in float32. The
    loss's gradient is multiplied by `loss_scale` in the backward pass, so that fp16,
    whose smallest positive value is 6e-8, can represent small gradients. A power of two
    rounds nothing.

    With `accumulate` each device takes its shard of the batch in so many parts, one
    after another, and one update follows. ZeRO 1 adds up gradients on each device and
    moves no more bytes; ZeRO 2 and 3 reduce-scatter those of each part, and ZeRO 3
    gathers the weights for each part.

    Returns each device's summed loss of every part, possibly still being computed.
    Raises `InvalidInput` for shards of other devices, for lists of different lengths,
    for fewer examples per device than parts, and as `split_batch` does.
    """
    check_sharded(sharded)
    step = Step(
        X,
        y,
        devices,
        lr,
        optimizer=optimizer,
        states=states,
        group=group,
        n=n,
        vocabulary=sharded.model.vocabulary,
    )
    hint = "pass the devices that shard_params was given"
    check_lists("sharded", sharded, len(devices), hint=hint)
    check_positive("loss_scale", loss_scale, "try 1024")
    losses: list[Tensor] = []
    passes = ForwardBackward(step, sharded, loss_scale)
    for Xs, ys in step.split(accumulate):
        if sharded.compute_dtype and step.B.dtype_of(X) == "float32":
            Xs = [step.B.cast(X_part, sharded.compute_dtype) for X_part in Xs]
        losses += passes.run(Xs, ys)
    if sharded.zero == 1:
        passes.sum_gradients()

    shards = sharded.to_update()
    if sharded.zero < 3 or sharded.compute_dtype:
        attach_grads(shards)
        _set_grads(sharded, shards, loss_scale)
    step.update_(shards)
    _store(sharded, shards, step.group)
    return by_device(losses, len(devices))


def _set_grads(
    sharded: ShardedParams, shards: Sequence[Sequence[Tensor]], loss_scale: float
) -> None:
    """Set the gradients of what is updated, in float32 for master weights."""
    B = backend_of(shards[0][0])
    for own, grads, bounds in zip(shards, sharded.grads, sharded.bounds, strict=True):
        for p, grad, limits in zip(own, grads, bounds, strict=True):
            if sharded.zero == 1:
                grad = B.read(grad, *limits)
            if sharded.compute_dtype:
                grad = B.cast(grad, "float32") / loss_scale
            B.write_(B.grad(p), 0, element_count(p), grad)


def _store(
    sharded: ShardedParams, shards: Sequence[Sequence[Tensor]], group: Group
) -> None:
    """Write the updated shards to the tensors held; all-gather these if not sharded."""
    B, dtype = backend_of(shards[0][0]), sharded.compute_dtype
    for l in range(len(sharded.flat_params)):
        flats = [held[l] for held in sharded]
        for i, flat in enumerate(flats):
            own = shards[i][l]
            if dtype:
                B.write_(sharded.master_weights[i][l], 0, element_count(own), own)
                own = B.cast(own, dtype)
            if sharded.zero < 3:
                B.write_(flat, *sharded.bounds[i][l], own)
            elif dtype:  # otherwise it was updated in place
                B.write_(flat, 0, element_count(own), own)
        if sharded.zero < 3:
            gather_flat_(flats, group)
