"""Gradient accumulation: a batch in parts, one after another, for one step.

Each pass adds its gradients to those of the passes before. The devices sum them once,
after the last: a step moves the same bytes, and holds the activations of one part.
Chapter: *large_batch*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.protocol import AnyDevice, Tensor, element_count
from ..comm.allreduce import start_allreduce
from ..comm.group import group_for, local_group
from ..comm.parts import by_device, split_in_parts
from ..comm.split import check_batch
from ..errors import InvalidInput, framework_errors
from ..events import notify_work
from ..models.model import Model, losses_of
from ..optimizers import Optimizer
from ..parallel.data import Reducer
from ..plans.rounds import Plan


def check_accumulates(model: Model, parts: int) -> None:
    """Refuse a model whose devices meet on the way: a later part would not be there."""
    if model.together is not None and parts > 1:
        raise InvalidInput(
            f"expected a model without sums over the whole batch to accumulate, got "
            f"{model.name}: it would sum over each of {parts} parts; use more devices, "
            "or lenet_bn, which normalises each part by itself"
        )


def train_in_parts(
    X: Tensor,
    y: Tensor,
    device_params: Sequence[Sequence[Tensor]],
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    parts: int,
    model: Model,
    optimizer: Optimizer,
    states: Sequence[Sequence[Tensor]],
    algorithm: str | Plan = "star",
    reducer: Reducer | None = None,
    n: int | None = None,
) -> list[Tensor]:
    """Take the step of `train_batch` in so many passes; each device cuts its shard.

    Arguments are those of `train_batch`. Returns the summed losses, device by device
    those of every pass. Raises `InvalidInput` for a shard with fewer examples than
    parts, and for a model whose devices meet on the way.
    """
    B = check_batch(X, y, model.vocabulary)
    check_accumulates(model, parts)
    group = group_for(len(devices))
    trained = [params[: len(params) - model.buffers] for params in device_params]
    cut = group if n is None else local_group(len(devices))
    shards = split_in_parts(X, y, devices, cut, parts)
    for params in trained:
        for p in params:
            B.clear_grad_(p)
    leaves = [  # with MXNet a pass would overwrite the gradient of p itself
        [*B.accumulating(mine), *params[len(mine) :]]
        for mine, params in zip(trained, device_params, strict=True)
    ]
    found: list[Tensor] = []
    for part, (Xs, ys) in enumerate(shards, 1):
        losses: list[Tensor] = []
        for params, X_part, y_part, device in zip(leaves, Xs, ys, devices, strict=True):
            with (
                B.record(),
                framework_errors(model.name, X),
                notify_work([device], "forward", B.synchronize),
            ):
                logits = model.forward(B, params, X_part)
                losses.append(losses_of(B, logits, y_part, y).sum())
        found += [B.detach(loss) for loss in losses]
        if reducer is not None and part == parts:
            with (
                notify_work(devices, "backward and all-reduce", B.synchronize),
                reducer(trained, algorithm=algorithm, group=group),
            ):
                B.backward(losses)
        else:
            for loss, device in zip(losses, devices, strict=True):
                with notify_work([device], "backward", B.synchronize):
                    B.backward([loss])
    if reducer is None:
        with notify_work(devices, "all-reduce", B.synchronize):
            for same_parameter in zip(*trained, strict=True):
                grads = [B.grad(p) for p in same_parameter]
                start_allreduce(grads, algorithm, group).wait()
    for mine, state, device in zip(trained, states, devices, strict=True):
        with notify_work([device], "update", B.synchronize):
            optimizer.step_(mine, state, lr, n=element_count(y) if n is None else n)
    return by_device(found, len(devices))
