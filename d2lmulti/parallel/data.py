"""Data parallelism: every device holds the whole network and a part of each batch.

D2L's functions with D2L's names (`get_params`, `split_batch`, `train_batch`), for every
framework and number of devices. Chapter: *data_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_floating, check_list, check_lists
from ..comm.group import Group, check_algorithm
from ..errors import InvalidInput
from ..models.networks import Model, framework_errors, get_model, losses_of
from ..optimizers import Optimizer
from ..plans.rounds import Plan
from .step import Step, by_device, load

Backward = Callable[[Sequence[Tensor]], None]
Reducer = Callable[..., AbstractContextManager[Any]]  # such as `reduce_in_buckets`


def get_params(params: Sequence[Tensor], device: AnyDevice) -> list[Tensor]:
    """Copy parameters to a device and attach gradients (D2L's `get_params`).

    The copies have storage of their own even where `params` are on that device already:
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
    model: str | Model = "lenet",
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    algorithm: str | Plan = "star",
    reducer: Reducer | None = None,
    accumulate: int = 1,
    group: Group | None = None,
    n: int | None = None,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices (D2L's `train_batch`).

    X (m, ...), y (m, ...): the whole batch. device_params: one list of parameters per
    device, from `get_params`; all are updated in place and stay equal bit for bit. The
    gradient is the sum over all targets in y, divided once by their number. `states`:
    the optimizer's, one per device (needed with momentum). With a `reducer`, such as
    `partial(reduce_in_buckets, bucket_bytes=2**20)`, gradients are summed during the
    backward pass (see `buckets.py`). With `accumulate`, each device runs its shard in
    that many parts, one after another, and gradients are summed over the devices after
    the last part. In a group of processes, X and y may be this process's part alone
    (see `batches`), if `n` is the number of targets in the whole batch. The summed
    gradients stay until the next step, which clears them first.

    Returns each device's summed losses, one per part, not yet waited for. Raises
    `InvalidInput` for lists of different lengths, for what `split_batch` rejects, for a
    shard with fewer examples than parts, and for accumulation with a model that sums
    over the whole batch in its forward pass.
    """
    model = get_model(model)
    step = Step(
        X, y, devices, lr, optimizer=optimizer, states=states, group=group, n=n,
        vocabulary=model.vocabulary,
    )  # fmt: skip
    hint = "use [get_params(params, d) for d in devices]"
    check_lists("device_params", device_params, len(devices), hint=hint)
    check_algorithm(algorithm)
    check_accumulates(model, accumulate)
    B, parts = step.B, step.split(accumulate)

    trained = [params[: len(params) - model.buffers] for params in device_params]
    step.clear_(trained)
    if accumulate > 1:  # with MXNet, a pass would overwrite the gradient of p
        device_params = [
            [*B.accumulating(trainable), *params[len(trainable) :]]
            for trainable, params in zip(trained, device_params, strict=True)
        ]
    losses: list[Tensor] = []
    for number, (Xs, ys) in enumerate(parts, 1):
        part_losses, backward = _forward(step, model, device_params, Xs, ys, algorithm)
        if reducer is not None and number == accumulate:
            with (
                step.span("backward and all-reduce"),
                reducer(trained, algorithm=algorithm, group=step.group),
            ):
                backward(part_losses)
        elif model.together is not None:
            with step.span("backward"):
                backward(part_losses)
        else:
            for loss, device in zip(part_losses, devices, strict=True):
                with step.span("backward", device):
                    backward([loss])
        losses += [B.detach(loss) for loss in part_losses]
    if reducer is None:
        step.allreduce_(trained, algorithm)
    step.update_(trained)
    return by_device(losses, len(devices))


def _forward(
    step: Step,
    model: Model,
    device_params: Sequence[Sequence[Tensor]],
    Xs: Sequence[Tensor],
    ys: Sequence[Tensor],
    algorithm: str | Plan,
) -> tuple[list[Tensor], Backward]:
    """Compute each device's summed loss; return them and the backward pass."""
    B, losses = step.B, []
    if model.together is not None:  # the devices communicate in the forward pass
        with B.record(), framework_errors(model.name, step.X), step.span("forward"):
            outs, backward = model.together(B, device_params, Xs, step.group, algorithm)
            for logits, y in zip(outs, ys, strict=True):
                losses.append(losses_of(B, logits, y, step.y).sum())
        return losses, backward
    for params, X, y, device in zip(device_params, Xs, ys, step.devices, strict=True):
        with (
            B.record(),
            framework_errors(model.name, step.X),
            step.span("forward", device),
        ):
            logits = model.forward(B, params, X)
            losses.append(losses_of(B, logits, y, step.y).sum())
    return losses, B.backward


def check_accumulates(model: Model, parts: int) -> None:
    """Raise for accumulation if the devices sum over the batch in the forward pass."""
    if model.together is not None and parts > 1:
        raise InvalidInput(
            f"expected a model without sums over the whole batch to accumulate, got "
            f"{model.name}: it would sum over each of {parts} parts; use more devices, "
            "or lenet_bn, which normalizes each part separately"
        )
