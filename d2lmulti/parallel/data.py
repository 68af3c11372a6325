"""Data parallelism: every device holds the whole network and a part of each batch.

D2L's functions with D2L's names (`get_params`, `split_batch`, `train_batch`), for any
framework and any number of devices. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ..backends import backend_of
from ..backends.lists import check_lists
from ..backends.protocol import AnyDevice, Tensor
from ..backends.sizes import element_count, nbytes
from ..checks import check_count, check_list, check_positive
from ..cluster.ledger import open_ledgers
from ..cluster.timeline import span, spans
from ..comm.collectives import allreduce
from ..comm.group import Group, group_for, local_group
from ..comm.split import check_batch, split_batch
from ..errors import InvalidInput
from ..models import get_model
from ..models.lenet import LENET
from ..models.model import Model, explained, forward, losses_of
from ..optimizers import Optimizer, check_optimizer, check_states
from ..plans.rounds import Plan
from .buckets import reduce_in_buckets
from .cooperative import run_cooperatively


def get_params(params: Sequence[Tensor], device: AnyDevice) -> list[Tensor]:
    """Copy parameters to a device and attach gradients (D2L's `get_params`).

    The copies have storage of their own even where `params` lie on that device already:
    with shared storage, k replicas on one device would step 2^(k-1) times too far.
    Gradients are those of D2L's loops: with MXNet a backward pass overwrites them, with
    PyTorch and Paddle it adds. To add up several passes with each of them, call
    `B.attach_grad(p)`.
    """
    if not isinstance(params, (list, tuple)) or not params:
        raise InvalidInput(
            f"expected a list of parameter tensors, got {params!r:.60}; make one with "
            "[B.array(p, 'cpu') for p in model.initial(rng)]"
        )
    copies = [backend_of(p).copy_to(p, device) for p in params]
    for p in copies:
        backend_of(p).attach_grad(p, add=False)
    for ledger in open_ledgers():
        ledger.loaded += sum(nbytes(p) for p in copies)
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
    bucket_bytes: int | None = None,
    group: Group | None = None,
    n: int | None = None,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices (D2L's `train_batch`).

    X (n, ...), y (n, ...): the whole batch. device_params: one list of parameters a
    device, from `get_params`; all are updated in place and stay equal bit for bit. The
    gradient is the sum over all targets in y, divided once by their number. `states`
    are the optimizer's, one a device (needed with momentum). With `bucket_bytes`,
    gradients are summed in buckets of that size during the backward pass (see
    `buckets.py`). In a group of processes, X and y may be this process's part alone
    (see `batches`), if `n` says how many targets the whole batch has. The summed
    gradients stay until the next step, which clears them first. Returns each
    device's summed loss, not yet waited for. Raises `InvalidInput` for lists of
    different lengths and what `split_batch` refuses.
    """
    B, model = check_batch(X, y), get_model(model)
    check_list("devices", devices, "devices", cure="use devices(1)")
    cure = "use [get_params(params, d) for d in devices]"
    check_lists("device_params", device_params, len(devices), cure=cure)
    states = check_states(states, len(devices))
    optimizer = check_optimizer(optimizer)
    check_positive("lr", lr, "try 0.05")
    if n is not None:
        n = check_count("n", n, cure="n is the number of targets in the whole batch")
    group = group_for(len(devices), group)
    trained = [params[: len(params) - model.buffers] for params in device_params]

    with spans(devices, "load", B.synchronize):
        cut = group if n is None else local_group(len(devices))
        X_shards, y_shards = split_batch(X, y, devices, cut)
    for params in trained:
        for p in params:
            B.clear_grad_(p)

    def begin(replicas: Sequence[Sequence[Tensor]]) -> list[Any]:
        pairs = zip(replicas, X_shards, strict=True)
        return [forward(model, B, params, X_shard) for params, X_shard in pairs]

    with B.record(), spans(devices, "forward", B.synchronize):
        forwards = begin(device_params)
        if isinstance(forwards[0], Generator):  # it has several backward passes to add
            pairs = zip(trained, device_params, strict=True)
            forwards = begin(
                [[*B.accumulating(p), *whole[len(p) :]] for p, whole in pairs]
            )
        logits, segments = run_cooperatively(B, forwards, group, algorithm)
        with explained(model.name, X):
            losses = [
                losses_of(B, out, y_shard).sum()
                for out, y_shard in zip(logits, y_shards, strict=True)
            ]
    if bucket_bytes is None:
        with spans(devices, "backward", B.synchronize):
            segments.backward(losses)
        with spans(devices, "all-reduce", B.synchronize):
            for same_parameter in zip(*trained, strict=True):
                allreduce([B.grad(p) for p in same_parameter], algorithm, group)
    else:
        with (
            spans(devices, "backward and all-reduce", B.synchronize),
            reduce_in_buckets(trained, bucket_bytes, algorithm, group),
        ):
            segments.backward(losses)
    for params, state, device in zip(trained, states, devices, strict=True):
        with span(device, "update", B.synchronize):
            optimizer.step_(params, state, lr, n=element_count(y) if n is None else n)
    return losses
