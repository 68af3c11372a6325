"""Tensor parallelism: every device holds a shard of each layer, and sees every example.

`split_params` shards the parameters of the whole network, `train_layers` takes one step
on the shards, and `gather_params` joins them again. Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_list, check_lists, check_params
from ..comm.collectives import allgather
from ..comm.cooperative import run_cooperatively
from ..comm.group import Group, check_algorithm, group_for
from ..errors import InvalidInput
from ..models.networks import Model
from ..models.tensor_parallel import get_split
from ..models.tensor_parallel.layers import (
    RankInfo,
    ShardSpec,
    SplitModel,
    run_to_loss,
)
from ..optimizers import Optimizer
from ..plans.rounds import Plan
from .step import Step, load

AnyModel = str | Model | SplitModel


def split_params(
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: AnyModel,
    group: Group | None = None,
) -> list[list[Tensor]]:
    """Return each device's shards of the parameters, with gradients attached.

    All are copies. Raises `InvalidInput` for a number of parameters that is not the
    model's, and, naming layer and dimension, for what cannot be divided evenly.
    """
    specs = get_split(model).specs
    check_params(params, len(specs))
    check_list("devices", devices, "devices", hint="use devices(1)")
    group = group_for(len(devices), group)
    for i, (p, (layer, spec)) in enumerate(zip(params, specs, strict=True)):
        _check_divides(i, p, layer, spec, group.size)
    device_shards = []
    for rank, device in zip(group.local_ranks, devices, strict=True):
        shards = []
        for p, (_, spec) in zip(params, specs, strict=True):
            B = backend_of(p)
            with B.pause():
                shard = load(_shard(B, p, spec, rank, group.size), device)
            B.attach_grad(shard)
            shards.append(shard)
        device_shards.append(shards)
    return device_shards


def gather_params(
    device_shards: Sequence[Sequence[Tensor]],
    model: AnyModel,
    group: Group | None = None,
) -> list[list[Tensor]]:
    """Return the unsharded parameters for every device.

    Gradients can be gathered, too. Replicated parameters are copied from the device
    itself, so replicas that differ stay visible. Raises `InvalidInput` for another
    number of shards than the model has parameters.
    """
    specs = get_split(model).specs
    _check_shards(device_shards, specs, len(device_shards))
    group = group_for(len(device_shards), group)
    joined = [
        _join(shards, spec, group)
        for shards, (_, spec) in zip(
            zip(*device_shards, strict=True), specs, strict=True
        )
    ]
    return [list(full) for full in zip(*joined, strict=True)]


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
    """Take one step on a batch, of which every device computes its shards of layers.

    X (n, ...), y (n, ...): the whole batch, on every device. device_shards: from
    `split_params`; updated in place, and replicated parameters stay equal bit for bit.
    `states` are the optimizer's, one per device. All devices have the same summed loss:
    the process of rank 0 returns it, as a list of one, and the others return an empty
    list. Raises `InvalidInput` for X and y of different lengths, and for another number
    of lists than devices, or of shards than parameters.
    """
    model = get_split(model)
    step = Step(X, y, devices, lr, optimizer=optimizer, states=states, group=group)
    _check_shards(device_shards, model.specs, len(devices))
    check_algorithm(algorithm)
    B, group = step.B, step.group
    step.clear_(device_shards)
    forwards = []
    for rank, device, shards in zip(
        group.local_ranks, devices, device_shards, strict=True
    ):
        part = RankInfo(rank, group.size, tuple(X.shape), targets=y)
        batch = load(X, device), load(y, device)
        forwards.append(run_to_loss(B, model, shards, *batch, part))
    with B.record():
        losses, segments = run_cooperatively(B, forwards, group, algorithm)
    segments.backward(losses)
    step.update_(device_shards)
    return losses[:1] if group.local_ranks[0] == 0 else []


def _check_shards(
    device_shards: Sequence[Sequence[Tensor]],
    specs: Sequence[tuple[str, ShardSpec]],
    devices: int,
) -> None:
    hint = "use split_params(params, devices, model)"
    check_lists("device_shards", device_shards, devices, hint=hint)
    for shards in device_shards:
        check_params(shards, len(specs), "shards per device")


def _check_divides(i: int, p: Tensor, layer: str, spec: ShardSpec, ranks: int) -> None:
    if spec.dim is None:
        return
    count = int(p.shape[spec.dim]) // (spec.blocks * spec.unit)
    if count % ranks:
        raise InvalidInput(
            f"cannot split {layer} over {ranks} devices: {ranks} does not divide its "
            f"{count} {spec.of}, dimension {spec.dim} of parameter {i} with shape "
            f"{tuple(p.shape)}; use another number of devices, or a network with a "
            f"multiple of {ranks} {spec.of}"
        )


def _shard(B: Backend, p: Tensor, spec: ShardSpec, rank: int, ranks: int) -> Tensor:
    if spec.dim is None:
        return p
    front = _to_front(B, p, spec.dim)
    size = front.shape[0] // (spec.blocks * ranks)
    firsts = [(block * ranks + rank) * size for block in range(spec.blocks)]
    return _to_front(B, B.concat([front[a : a + size] for a in firsts]), spec.dim)


def _join(shards: Sequence[Tensor], spec: ShardSpec, group: Group) -> list[Any]:
    B, ranks = backend_of(shards[0]), group.size
    with B.pause():
        if spec.dim is None:
            return [B.copy_to(s, B.device_of(s)) for s in shards]
        fronts = [B.copy_to(_to_front(B, s, spec.dim), B.device_of(s)) for s in shards]
        wholes = []
        for front in allgather(fronts, group):  # rows: rank, block, size
            size = front.shape[0] // (ranks * spec.blocks)
            firsts = [
                (rank * spec.blocks + block) * size
                for block in range(spec.blocks)
                for rank in range(ranks)
            ]
            whole = B.concat([front[a : a + size] for a in firsts])
            whole = _to_front(B, whole, spec.dim)
            wholes.append(B.copy_to(whole, B.device_of(whole)))
        return wholes


def _to_front(B: Backend, p: Tensor, dim: int) -> Tensor:
    """Swap dimension `dim` with the first, which every backend can slice."""
    axes = list(range(len(p.shape)))
    axes[0], axes[dim] = dim, 0
    return B.transpose(p, axes) if dim else p
