"""Layer parallelism: every device holds a part of each layer, and sees every example.

`split_params` cuts the parameters of the whole network, `train_layers` takes one step
on the parts, and `gather_params` puts the whole together again, so that one device is
always there to compare with. Also called tensor parallelism. Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Backend, Tensor, element_count
from ..checks import check_list, check_lists, check_positive
from ..comm.allreduce import check_algorithm, start_allreduce
from ..comm.collectives import allgather
from ..comm.cooperative import run_cooperatively
from ..comm.group import Group, group_for
from ..comm.split import check_batch, load
from ..errors import InvalidInput
from ..events import notify_mark
from ..models.model import Model
from ..models.tensor_parallel.split import RankInfo, ShardSpec, SplitModel, run_to_loss
from ..models.tensor_parallel.table import get_split
from ..optimizers import Optimizer, check_optimizer, check_states
from ..plans.rounds import Plan

AnyModel = str | Model | SplitModel


def split_params(
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: AnyModel,
    group: Group | None = None,
) -> list[list[Tensor]]:
    """Give every device its part of the whole parameters, with gradients attached.

    All parts are copies. Raises `InvalidInput` for a number of parameters that is not
    the model's, and, naming layer and dimension, for what does not divide.
    """
    cuts = get_split(model).cuts
    check_list("params", params, "tensors", hint="take them from model.initial(rng)")
    check_list("devices", devices, "devices", hint="use devices(1)")
    _check_count(params, cuts, "parameters")
    group = group_for(len(devices), group)
    for i, (p, (layer, cut)) in enumerate(zip(params, cuts, strict=True)):
        _check_divides(i, p, layer, cut, group.size)
    device_shards = []
    for rank, device in zip(group.local_ranks, devices, strict=True):
        shards = []
        for p, (_, cut) in zip(params, cuts, strict=True):
            B = backend_of(p)
            with B.pause():
                shard = load(_cut_out(B, p, cut, rank, group.size), device)
            B.attach_grad(shard)
            shards.append(shard)
        device_shards.append(shards)
    return device_shards


def gather_params(
    device_shards: Sequence[Sequence[Tensor]],
    model: AnyModel,
    group: Group | None = None,
) -> list[list[Tensor]]:
    """Put the whole parameters together on every device; also gradients, in their form.

    What every device holds whole is copied from that device itself, so a copy that went
    astray is seen.
    """
    cuts = get_split(model).cuts
    check_list("device_shards", device_shards, "lists of shards")
    check_lists("device_shards", device_shards, len(device_shards))
    for shards in device_shards:
        _check_count(shards, cuts, "shards a device")
    group = group_for(len(device_shards), group)
    joined = [
        _join(same, cut, group)
        for same, (_, cut) in zip(zip(*device_shards, strict=True), cuts, strict=True)
    ]
    return [list(whole) for whole in zip(*joined, strict=True)]


def train_layers(
    X: Tensor,
    y: Tensor,
    device_shards: Sequence[Sequence[Tensor]],
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    model: AnyModel = "lenet",
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    algorithm: str | Plan = "star",
    group: Group | None = None,
) -> list[Tensor]:
    """Take one step on a batch that every device sees whole, each with its shards.

    X (n, ...), y (n, ...): the whole batch. device_shards: from `split_params`; updated
    in place, and what all devices hold stays equal bit for bit. `states` are the
    optimizer's, one a device. Returns the summed loss, which all devices have, once:
    from the process of rank 0, as a list of one, and an empty list from the others.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    optimizer, states = check_optimizer(optimizer), check_states(states, len(devices))
    check_positive("lr", lr, "try 0.05")
    group = group_for(len(devices), group)
    B, model = check_batch(X, y), get_split(model)
    hint = "use split_params(params, devices, model)"
    check_lists("device_shards", device_shards, len(devices), hint=hint)
    for shards in device_shards:
        _check_count(shards, model.cuts, "shards a device")
    check_algorithm(algorithm)
    Xs, ys = ([load(x, device) for device in devices] for x in (X, y))
    for shards in device_shards:
        for p in shards:
            B.clear_grad_(p)
    parts = [
        RankInfo(rank, group.size, tuple(X.shape), targets=y)
        for rank in group.local_ranks
    ]
    with B.record():
        forwards = [
            run_to_loss(B, model, *each)
            for each in zip(device_shards, Xs, ys, parts, strict=True)
        ]
        losses, segments = run_cooperatively(B, forwards, group, algorithm)
    segments.backward(losses)
    for i, (_, cut) in enumerate(model.cuts):
        if cut.summed:
            grads = [B.grad(s[i]) for s in device_shards]
            start_allreduce(grads, algorithm, group).wait()
            notify_mark("shared parameters")
    for shards, state in zip(device_shards, states, strict=True):
        optimizer.step_(shards, state, lr, n=element_count(y))
    return losses[:1] if group.local_ranks[0] == 0 else []


def _check_count(
    params: Sequence[Tensor], cuts: Sequence[tuple[str, ShardSpec]], what: str
) -> None:
    if len(params) != len(cuts):
        raise InvalidInput(
            f"expected {len(cuts)} {what}, as the model has, got {len(params)}; take "
            "them from model.initial(rng) of the same model"
        )


def _check_divides(i: int, p: Tensor, layer: str, cut: ShardSpec, ranks: int) -> None:
    if cut.dim is None:
        return
    entries = cut.blocks * cut.unit
    count = int(p.shape[cut.dim]) // entries
    if count % ranks:
        raise InvalidInput(
            f"cannot split {layer} over {ranks} devices: {ranks} does not divide its "
            f"{count} {cut.of}, dimension {cut.dim} of parameter {i} with shape "
            f"{tuple(p.shape)}; use another number of devices, or a network with a "
            f"multiple of {ranks} {cut.of}"
        )


def _cut_out(B: Backend, p: Tensor, cut: ShardSpec, rank: int, ranks: int) -> Tensor:
    if cut.dim is None:
        return p
    front = _swap(B, p, cut.dim)
    block = front.shape[0] // cut.blocks
    size = block // ranks
    first = rank * size
    pieces = [
        front[b * block + first : b * block + first + size] for b in range(cut.blocks)
    ]
    return _swap(B, B.concat(pieces), cut.dim)


def _join(shards: Sequence[Tensor], cut: ShardSpec, group: Group) -> list[Any]:
    B = backend_of(shards[0])
    with B.pause():
        if cut.dim is None:
            return [B.copy_to(s, B.device_of(s)) for s in shards]
        fronts = [B.copy_to(_swap(B, s, cut.dim), B.device_of(s)) for s in shards]
        wholes = []
        for front in allgather(fronts, group):  # rows: rank, block, size
            size = front.shape[0] // group.size // cut.blocks
            starts = [
                (rank * cut.blocks + b) * size
                for b in range(cut.blocks)
                for rank in range(group.size)
            ]
            whole = B.concat([front[s : s + size] for s in starts])
            whole = _swap(B, whole, cut.dim)
            wholes.append(B.copy_to(whole, B.device_of(whole)))
        return wholes


def _swap(B: Backend, p: Tensor, dim: int) -> Tensor:
    """Swap the dimension `dim` with the first, which can be sliced on every backend."""
    axes = list(range(len(p.shape)))
    axes[0], axes[dim] = dim, 0
    return B.transpose(p, axes) if dim else p
