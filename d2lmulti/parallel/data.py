"""Data parallelism: every device holds the whole network and a part of each batch.

D2L's functions with D2L's names (`get_params`, `split_batch`, `train_batch`), for any
framework and any number of devices. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backends.protocol import AnyDevice, Tensor, backend_of, element_count
from ..checks import (
    check_count,
    check_floating,
    check_kind,
    check_list,
    check_lists,
    check_positive,
)
from ..comm.allreduce import check_algorithm, start_allreduce
from ..comm.group import Group, group_for, local_group
from ..comm.split import check_batch, load, split_batch
from ..errors import framework_errors
from ..events import notify_work
from ..models.model import Model, get_model, losses_of
from ..models.networks import LENET
from ..optimizers import Optimizer, check_optimizer, check_states
from ..plans.rounds import Plan

Reducer = Callable[..., AbstractContextManager[Any]]  # such as `reduce_in_buckets`


def get_params(params: Sequence[Tensor], device: AnyDevice) -> list[Tensor]:
    """Copy parameters to a device and attach gradients (D2L's `get_params`).

    The copies have storage of their own even where `params` lie on that device already:
    with shared storage, k replicas on one device would step 2^(k-1) times too far.
    Gradients are those of D2L's loops: with MXNet a backward pass overwrites them, with
    PyTorch and Paddle it adds. To add up several passes with each of them, call
    `B.attach_grad(p)`.
    """
    hint = "make one with [B.array(p, 'cpu') for p in model.initial(rng)]"
    check_list("params", params, "parameter tensors", hint=hint)
    for p in params:
        check_floating("params", p)
    copies = [load(p, device) for p in params]
    for p in copies:
        backend_of(p).attach_grad(p, add=False)
    return copies


def train_batch(
    X: Tensor,
    y: Tensor,
    device_params: Sequence[Sequence[Tensor]],
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    model: str | Model = LENET,
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    algorithm: str | Plan = "star",
    reducer: Reducer | None = None,
    group: Group | None = None,
    n: int | None = None,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices (D2L's `train_batch`).

    X (n, ...), y (n, ...): the whole batch. device_params: one list of parameters a
    device, from `get_params`; all are updated in place and stay equal bit for bit. The
    gradient is the sum over all targets in y, divided once by their number. `states`
    are the optimizer's, one a device (needed with momentum). With a `reducer`, such as
    `partial(reduce_in_buckets, bucket_bytes=2**20)`, gradients are summed during the
    backward pass (see `buckets.py`). In a group of processes, X and y may be this
    process's part alone (see `batches`), if `n` says how many targets the whole batch
    has. The summed gradients stay until the next step, which clears them first. Returns
    each device's summed loss, not yet waited for. Raises `InvalidInput` for lists of
    different lengths and what `split_batch` refuses.
    """
    model = get_model(model)
    B = check_batch(X, y, model.vocabulary)
    check_list("devices", devices, "devices", hint="use devices(1)")
    hint = "use [get_params(params, d) for d in devices]"
    check_lists("device_params", device_params, len(devices), hint=hint)
    states = check_states(states, len(devices))
    optimizer = check_optimizer(optimizer)
    check_positive("lr", lr, "try 0.05")
    check_algorithm(algorithm)
    if reducer is not None:
        check_kind("reducer", reducer, Callable, "a function such as reduce_in_buckets")
    if n is not None:
        n = check_count("n", n, hint="n is the number of targets in the whole batch")
    group = group_for(len(devices), group)
    trained = [params[: len(params) - model.buffers] for params in device_params]

    cut = group if n is None else local_group(len(devices))
    X_shards, y_shards = split_batch(X, y, devices, cut)
    for params in trained:
        for p in params:
            B.clear_grad_(p)

    backward: Callable[[Sequence[Tensor]], None] | None = None
    losses: list[Tensor] = []
    if model.together is None:
        shards = zip(device_params, X_shards, y_shards, devices, strict=True)
        for params, X_shard, y_shard, device in shards:
            with (
                B.record(),
                framework_errors(model.name, X),
                notify_work([device], "forward", B.synchronize),
            ):
                logits = model.forward(B, params, X_shard)
                losses.append(losses_of(B, logits, y_shard, y).sum())
    else:  # the devices exchange messages in the forward pass
        with (
            B.record(),
            framework_errors(model.name, X),
            notify_work(devices, "forward", B.synchronize),
        ):
            outs, backward = model.together(
                B, device_params, X_shards, group, algorithm
            )
            for logits, y_shard in zip(outs, y_shards, strict=True):
                losses.append(losses_of(B, logits, y_shard, y).sum())

    if reducer is not None:
        with (
            notify_work(devices, "backward and all-reduce", B.synchronize),
            reducer(trained, algorithm=algorithm, group=group),
        ):
            (backward or B.backward)(losses)
    else:
        if backward is None:
            for loss, device in zip(losses, devices, strict=True):
                with notify_work([device], "backward", B.synchronize):
                    B.backward([loss])
        else:
            with notify_work(devices, "backward", B.synchronize):
                backward(losses)
        with notify_work(devices, "all-reduce", B.synchronize):
            for same_parameter in zip(*trained, strict=True):
                grads = [B.grad(p) for p in same_parameter]
                start_allreduce(grads, algorithm, group).wait()
    for params, state, device in zip(trained, states, devices, strict=True):
        with notify_work([device], "update", B.synchronize):
            optimizer.step_(params, state, lr, n=element_count(y) if n is None else n)
    return losses
