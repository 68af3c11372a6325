"""Train a model with any strategy: D2L's `train(num_gpus, batch_size, lr)`.

The same seed gives the same initial weights and the same batches on every framework and
for every number of devices and every strategy. Chapter: *data_parallel*.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import numpy as np

from ..backends import backend_of, get_backend
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import (
    check_choice,
    check_count,
    check_finite,
    check_ids,
    check_lists,
    invalid,
)
from ..comm.devices import devices as first_devices
from ..comm.group import group_for
from ..data import DTYPES, Dataset, batch_count, batches, load
from ..errors import InvalidInput
from ..events import unobserved
from ..files import progress
from ..models import get_model
from ..models.networks import Model, framework_errors
from ..observe.ledger import ledger
from ..optimizers import Optimizer, make_optimizer
from ..plans.rounds import even_bounds
from .checkpoint import Checkpoint, Saver
from .history import (
    Epoch,
    EpochTotals,
    History,
    about_machine,
    allgather_values,
    check_settings,
    check_state,
    describe,
    fingerprint,
    logits_of,
)
from .rate import Schedule, make_rate, rate_at
from .strategies import choose_strategy, with_options
from .strategy import Batch, Strategy


def check_data(data: str | Dataset, dtype: str) -> Dataset:
    """Return a data set, loaded by its name or given, with targets as int64.

    Raises `InvalidInput` for examples that are not finite and for targets that are not
    classes: these would change the losses, or on some backends count as another class.
    """
    if isinstance(data, str):
        data = load(data, dtype)
    for X, y in ((data.train_X, data.train_y), (data.test_X, data.test_y)):
        if not isinstance(y, np.ndarray) or y.dtype.kind not in "iu":
            raise invalid(f"a NumPy array of whole numbers as labels of {data.name}", y)
        check_ids(y, len(data.classes), f"labels of {data.name}")
        check_finite(f"examples of {data.name}", X)
        if not 0 < len(X) == len(y):
            raise InvalidInput(
                f"expected one label per example in {data.name}, got {len(X)} examples "
                f"and {len(y)} labels"
            )
    targets = [y.astype(np.int64, copy=False) for y in (data.train_y, data.test_y)]
    return replace(data, train_y=targets[0], test_y=targets[1])


def check_fits(
    B: Backend,
    data: Dataset,
    model: Model,
    params: Sequence[np.ndarray],
    batch_size: int,
    parts: int,
) -> None:
    """Raise unless the model fits the data and has logits for all its classes.

    The short last batch, too, must have an example for each part that it is cut into.
    """
    X, y = data.train_X, data.train_y
    smallest = len(X) - (batch_count(len(X), batch_size) - 1) * batch_size
    if smallest < parts:
        raise InvalidInput(
            f"the last batch of every epoch would hold {smallest} of {len(X)} "
            f"examples, fewer than the {parts} parts it is cut into; choose another "
            "batch size, or fewer devices, passes or micro-batches"
        )
    dtypes = {str(X.dtype), str(data.test_X.dtype)}
    expected = {"int32", "int64"} if model.vocabulary else {str(params[0].dtype)}
    if not dtypes <= expected:
        kind = "ids of characters" if model.vocabulary else "images"
        raise InvalidInput(
            f"expected {kind} of dtype {' or '.join(sorted(expected))} for "
            f"{model.name}, got {', '.join(sorted(dtypes))} from {data.name}; choose "
            "another data set or dtype"
        )
    if model.vocabulary and not 0 <= X.min() <= X.max() < model.vocabulary:
        raise InvalidInput(
            f"expected ids below {model.vocabulary}, the vocabulary of {model.name}, "
            f"got {X.min()} to {X.max()}; make the model with a larger vocabulary"
        )
    first = B.array(X[:1])
    with framework_errors(model.name, first), B.pause():
        rows, classes = model.forward_eval(B, [B.array(p) for p in params], first).shape
    if rows != y[:1].size or classes < len(data.classes):
        raise InvalidInput(
            f"expected at least {len(data.classes)} logits for each of {y[:1].size} "
            f"targets of an example, got {rows} rows of {classes} from {model.name}"
        )


def evaluate(
    device_params: Sequence[Sequence[Tensor]],
    X: np.ndarray,
    y: np.ndarray,
    devices: Sequence[AnyDevice],
    *,
    model: str | Model = "lenet",
    batch_size: int = 512,
) -> float:
    """Return the accuracy: the fraction of the targets y that the model predicts.

    X (n, ...) and y (n, ...) are NumPy arrays. Every device counts the hits in its
    shard with *its own* parameters, and the counts are summed, so a replica that
    diverged lowers the result. A device evaluates `batch_size` examples at a time.
    Raises `InvalidInput` for no examples, and for another number of targets or devices.
    """
    check_lists("device_params", device_params, len(devices))
    batch_size = check_count("batch_size", batch_size)
    model, group = get_model(model), group_for(len(devices))
    if model.vocabulary:
        check_ids(X, model.vocabulary)
    if not 0 < len(X) == len(y):
        raise InvalidInput(
            f"expected one label per example, got {len(X)} examples and {len(y)} labels"
        )
    B = backend_of(device_params[0][0])
    bounds = even_bounds(len(X), group.size)
    # All devices start before we wait for the first result, so that they overlap.
    guesses: list[list[Tensor]] = [[] for _ in devices]
    for i, rank in enumerate(group.local_ranks):
        start, end = bounds[rank]
        for first in range(start, end, batch_size):
            part = B.array(X[first : min(first + batch_size, end)], devices[i])
            with B.pause(), framework_errors(model.name, part):
                logits = model.forward_eval(B, device_params[i], part)
                guesses[i].append(B.argmax(logits))
    hits = 0
    for i, rank in enumerate(group.local_ranks):
        if guesses[i]:
            labels = y[slice(*bounds[rank])].reshape(-1)
            guess = np.concatenate([B.numpy(part) for part in guesses[i]])
            hits += int(np.count_nonzero(guess == labels))
    return sum(allgather_values(group, hits)) / y.size


@with_options
@np.errstate(over="ignore", invalid="ignore")  # the loss shows them
def train(
    num_gpus: int = 1,
    batch_size: int = 128,
    lr: float | Schedule = 0.05,
    *,
    warmup: int | None = None,
    momentum: float | None = None,
    epochs: int = 10,
    seed: int = 0,
    dtype: str = "float32",
    dataset: str | Dataset = "digits",
    model: str | Model = "lenet",
    optimizer: str | Optimizer = "sgd",
    strategy: str = "data",
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: int | None = None,
    resume: bool = False,
    backend: str | None = None,
    devices: Sequence[AnyDevice] | None = None,
    **options: Any,
) -> History:
    """Train on the first `num_gpus` devices (real or simulated); return the history.

    In a started group of as many processes, each trains its own device on its own shard
    of every batch; all return the same history, and rank 0 saves. Raises
    `InvalidInput`, before any work is done, for settings out of range, for a batch
    (also the short last one of an epoch) with fewer examples than parts, for labels
    that are no classes, and for a model that the strategy cannot split; and `Diverged`
    for a loss or a weight that is not finite.

    A resumed run continues bit for bit on as many devices, and up to rounding on
    others. Without `resume`, a checkpoint that exists raises an error, and so does one
    that another run is using. A later failure to write is `WriteFailed`; the last
    checkpoint stays.

    :param num_gpus: how many devices
    :param batch_size: examples of the whole batch, before it is split
    :param lr: learning rate, or a schedule (see `rate.py`)
    :param warmup: steps over which the learning rate grows to `lr`
    :param momentum: of sgd (default: 0.9)
    :param epochs: passes over the data
    :param seed: of weights and shuffling
    :param dtype: of weights
    :param dataset: data set
    :param model: network
    :param optimizer: rule of the update
    :param strategy: what is split: the batch (data; sharded: and the optimizer state),
        every layer (tensor), the model into stages (pipeline), or all of these (mesh)
    :param checkpoint: file to save the run in after every epoch
    :param save_every: save also after so many steps of an epoch
    :param resume: continue from the checkpoint if it is there
    :param backend: torch, mxnet, paddle or numpy
    :param devices: names of the devices, instead of `num_gpus`
    """
    batch_size = check_count("batch_size", batch_size)
    epochs = check_count("epochs", epochs)
    seed = check_count("seed", seed, min=0, max=None)
    check_choice("dtype", dtype, DTYPES)
    rate = make_rate(lr, warmup)
    split = choose_strategy(strategy, options)
    saver = Saver(checkpoint, save_every, resume)
    learner = make_optimizer(optimizer, momentum)
    B, model = get_backend(backend), get_model(model)
    places = first_devices(num_gpus, backend) if devices is None else list(devices)
    data = check_data(dataset, dtype)
    start = [p.astype(dtype) for p in model.initial(np.random.default_rng(seed))]
    split.prepare(places, model)
    check_fits(B, data, model, start, batch_size, split.batch_parts)
    n, group = len(data.train_X), split.group

    settings = {
        "backend": B.name,
        "model": model.name,
        "dataset": data.name,
        "dtype": dtype,
        "batch_size": batch_size,
        "lr": describe(rate) if isinstance(rate, Schedule) else rate,
        "momentum": getattr(learner, "momentum", None),
        "seed": seed,
        "optimizer": optimizer if isinstance(optimizer, str) else repr(optimizer),
        "strategy": strategy,
    }
    steps = batch_count(n, batch_size)
    beginning = Checkpoint(settings, params=start)
    described: dict[str, Any] = {}
    if saver.path is not None or group.is_distributed:
        described = fingerprint(data, rate, epochs * steps)
    if saver.path is not None:
        logits = logits_of(B, data, model, start)
        beginning.settings = settings | described | {"logits": logits}
    with saver.held(group, beginning, steps) as at:
        split.place([B.array(p) for p in at.params], learner)
        if group.is_distributed:  # otherwise there is nothing to compare
            further = {
                **about_machine(B),
                "model": [model, [p.shape for p in start]],
                "epochs": epochs,
                "optimizer": split.optimizer,
                **split.settings(),
                "checkpoint": checkpoint and os.fspath(checkpoint),
                "save_every": save_every,
                "resume": resume,
                "start": [at.epoch, at.step, at.params, at.state, at.buffers],
            }
            check_settings(group, settings | described | further)
        if at.epoch or at.step:
            with unobserved():
                split.restore(at.state, at.buffers)
        for name, value in split.options().items():
            settings[name] = getattr(value, "__name__", value)  # a plan is a function
        names = allgather_values(group, [str(device) for device in places])
        history = History(
            settings,
            [name for local_names in names for name in local_names],
            [Epoch(**epoch) for epoch in at.epochs],
        )
        title = f"{model.name} on {group.size}"
        with progress(epochs * n, " images", title, wanted=group.leader) as bar:
            bar.update(min(n, at.step * batch_size) + n * min(at.epoch, epochs))
            while at.epoch < epochs:
                _run_epoch(at, split, data, rate, batch_size, seed, saver, bar)
                wholes, holders = split.replicas()
                check_state(map(B.numpy, wholes[0]), f"after epoch {at.epoch + 1}")
                accuracy = evaluate(
                    wholes, data.test_X, data.test_y, holders, model=model
                )
                loss = at.loss / data.train_y.size
                epoch = Epoch(loss, accuracy, at.seconds, at.bytes_moved)
                history.epochs.append(epoch)
                at.epochs = [*at.epochs, asdict(epoch)]
                at.epoch, at.step = at.epoch + 1, 0
                at.loss, at.seconds, at.bytes_moved = 0.0, 0.0, 0
                saver.save(at, split)
                bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.3f}")
        history.device_params, _ = split.replicas()
        return history


def _run_epoch(
    at: Checkpoint, split: Strategy, data: Dataset, rate: float | Schedule,
    batch_size: int, seed: int, saver: Saver, bar: Any,
) -> None:  # fmt: skip
    """Train on the rest of the epoch, and update the position `at`."""
    B, group = backend_of(split.owned[0][0]), split.group
    before = at.seconds, at.bytes_moved
    part = group if group.is_distributed and split.cuts_batches else None
    n, targets = len(data.train_X), data.train_y.size // len(data.train_y)
    earlier_steps = at.epoch * batch_count(n, batch_size)  # steps of earlier epochs
    order = batches(data.train_X, data.train_y, batch_size, seed, at.epoch, group=part)
    with ledger() as moved:
        totals = EpochTotals(group, moved, at.epoch, at.step)

        def update_totals() -> None:
            B.synchronize()
            at.loss, seconds, count = totals.collect(at.loss)
            at.seconds, at.bytes_moved = before[0] + seconds, before[1] + count

        for X, y in islice(order, at.step, None):
            examples = min(batch_size, n - at.step * batch_size)
            batch = Batch(B.array(X), B.array(y), n=examples * targets)
            losses = split.step(batch, rate_at(rate, earlier_steps + at.step))
            totals.steps.append((losses, examples * targets))
            at.step += 1
            if saver.every and at.step % saver.every == 0:
                update_totals()
                saver.save(at, split)
            bar.update(examples)
        update_totals()
