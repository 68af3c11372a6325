"""A training step on shards: data parallelism, by reduce-scatter and all-gather."""

from __future__ import annotations

from collections.abc import Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor, element_count
from ...checks import check_count, check_flag, check_list, check_positive
from ...comm.group import Group, group_for, local_group
from ...comm.parts import by_device, split_in_parts
from ...comm.split import check_batch
from ...events import working
from ...optimizers import Optimizer, check_optimizer, check_states
from .holding import ShardedParams, attach_grads, check_sharded
from .moving import start_share
from .passes import Pass


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
    prefetch: bool = False,
    loss_scale: float = 1.0,
    accumulate: int = 1,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices as in `train_batch`.

    X (n, ...), y (n, ...): the whole batch, or, in a group of processes and with `n`,
    the number of targets of the whole, this process's part of it. sharded: from
    `shard_params`, updated in place; `states`: the optimizer's, of `sharded.parts()`.

    All sum the gradients layer by layer, each by a reduce-scatter; ZeRO 1 and 2 end
    with an all-gather of the updated parts, ZeRO 3 gathers a layer before each use. So
    N numbers, N_last of them in the last layer, on k devices cost 2 (k - 1) N, with
    ZeRO 3 (k - 1) (3 N - N_last): the last layer goes back at once. With ZeRO 2 and 3
    no more than one layer's gradients (with ZeRO 3, parameters) are whole at a time; of
    the forward pass only the inputs of the layers are kept, and each layer is computed
    again on the way back. With `prefetch` two are: the next layer is asked for before
    this one is computed, and a layer's gradients may leave while the one before goes
    back. ZeRO 1, which keeps them all, otherwise sums them after the pass. Across
    processes with PyTorch's engine both are then under way meanwhile, which pays where
    a core is free to send; elsewhere only the order is new.

    In mixed precision (see `shard_params`) the loss and the update are in float32. The
    loss's gradient is multiplied by `loss_scale` on the way back, so that fp16, whose
    least number is 6e-8, holds small ones; a power of two rounds nothing. A sum over
    a batch is scaled already, by its size.

    With `accumulate` each device takes its shard in so many parts, one after another;
    their gradients are added up before the one update. ZeRO 1 adds them on each device
    and moves no more; ZeRO 2 and 3, which may not keep them whole, reduce-scatter those
    of each part, and ZeRO 3 gathers the weights for each. In mixed precision the sum
    has the 16 bits of its summands.

    Returns each device's summed loss of every part, not yet waited for. Raises
    `InvalidInput` for what `shard_params` has not made, for lists of different lengths,
    for fewer examples a device than parts, and what `split_batch` refuses.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    check_sharded(sharded, len(devices))
    B = check_batch(X, y, sharded.model.vocabulary)
    states = check_states(states, len(devices))
    optimizer = check_optimizer(optimizer)
    check_positive("lr", lr, "try 0.05")
    prefetch = check_flag("prefetch", prefetch)
    check_positive("loss_scale", loss_scale, "try 1024")
    if n is not None:
        n = check_count("n", n, hint="n is the number of targets in the whole batch")
    group = group_for(len(devices), group)
    cut = group if n is None else local_group(len(devices))
    shards = split_in_parts(X, y, devices, cut, accumulate)
    losses: list[Tensor] = []
    for part, (Xs, ys) in enumerate(shards, 1):
        if sharded.low and B.dtype_of(X) == "float32":
            Xs = [B.cast(X_part, sharded.low) for X_part in Xs]
        ends = part == 1, part == accumulate
        walk = Pass(B, sharded, devices, group, prefetch, loss_scale, *ends)
        losses += walk.run(Xs, ys, y)

    parts = sharded.to_update()
    if sharded.zero < 3 or sharded.low:
        attach_grads(parts)
        for l in range(len(sharded.units)):
            for mine, grad in zip(parts, walk.grads(l), strict=True):
                if sharded.low:
                    grad = B.cast(grad, "float32") / loss_scale
                B.write_(B.grad(mine[l]), 0, element_count(grad), grad)
    for mine, state, device in zip(parts, states, devices, strict=True):
        with working([device], "update", B.synchronize):
            optimizer.step_(mine, state, lr, n=element_count(y) if n is None else n)
    parts = sharded.update_(parts)
    if sharded.zero < 3:
        _share_(sharded, parts, group)
    elif sharded.low:
        for mine, new in zip(sharded, parts, strict=True):
            for p, q in zip(mine, new, strict=True):
                B.write_(p, 0, element_count(q), q)
    return by_device(losses, len(devices))


def _share_(
    sharded: ShardedParams, parts: Sequence[list[Tensor]], group: Group
) -> None:
    """Let every device have the others' updated parts; all layers are under way."""
    works = []
    for l in range(len(sharded.units)):
        for mine, own, bounds in zip(sharded, parts, sharded.bounds, strict=True):
            backend_of(own[l]).write_(mine[l], *bounds[l], own[l])
        call = "" if l else "all-gather of all layers' parts"
        works.append(start_share([mine[l] for mine in sharded], group, call))
    for work in works:
        work.wait()
