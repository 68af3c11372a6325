"""Train a model, however it is split: D2L's `train(num_gpus, batch_size, lr)`.

The same seed gives the same start and the same batches on every framework and for every
number of devices and every strategy. Chapter: *data_parallel*.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..backends import get_backend
from ..backends.protocol import AnyDevice, Tensor
from ..cluster.ledger import ledger
from ..comm.devices import devices as first_devices
from ..errors import InvalidInput
from ..models import get_model
from ..models.model import Model
from ..optimizers import Optimizer, make_optimizer
from .batches import batch_count, batches
from .datasets import Dataset, check_fits, load
from .evaluate import evaluate
from .progress import progress
from .strategies import STRATEGIES, make_strategy


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave."""

    loss: float  # mean over the training examples, during the epoch
    accuracy: float  # on the test set, after the epoch
    seconds: float  # training only, evaluation left out
    bytes_moved: int  # between devices


@dataclass
class History:
    """A finished training run: its settings, its epochs, its parameters."""

    settings: dict[str, Any]
    devices: list[str]
    epochs: list[Epoch] = field(default_factory=list)
    device_params: list[list[Tensor]] = field(default_factory=list, repr=False)

    @property
    def losses(self) -> list[float]:
        """Training loss of every epoch."""
        return [epoch.loss for epoch in self.epochs]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy after every epoch."""
        return [epoch.accuracy for epoch in self.epochs]

    @property
    def bytes_moved(self) -> int:
        """Bytes between devices over the whole run."""
        return sum(epoch.bytes_moved for epoch in self.epochs)

    def as_json(self) -> dict[str, Any]:
        """Everything but the parameters, as plain JSON values."""
        epochs = [asdict(epoch) for epoch in self.epochs]
        return {
            **self.settings,
            "devices": self.devices,
            "bytes_moved": self.bytes_moved,
            "epochs": epochs,
        }


def train(
    num_gpus: int = 1,
    batch_size: int = 128,
    lr: float = 0.05,
    *,
    momentum: float = 0.9,
    epochs: int = 10,
    seed: int = 0,
    dtype: str = "float32",
    dataset: str | Dataset = "digits",
    model: str | Model = "lenet",
    optimizer: str | Optimizer = "sgd",
    strategy: str = "data",
    algorithm: str | None = None,
    bucket_bytes: int | None = None,
    schedule: str | None = None,
    micro_batches: int | None = None,
    stages: int | None = None,
    backend: str | None = None,
    devices: Sequence[AnyDevice] | None = None,
) -> History:
    """Train on the first `num_gpus` devices (real or simulated); return the history.

    `batch_size` is the size of the whole batch, before it is split. `devices` names
    them one by one instead. `strategy` says how the work is split, and the options
    after it belong to it (see `strategies.py`); `momentum` is that of SGD. Raises
    `InvalidInput`, before any work is done, for settings out of range, for a batch
    (also the short last one of an epoch) with fewer examples than it is cut into, and
    for a model that cannot be split so.
    """
    B = get_backend(backend)
    model = get_model(model)
    devices = list(devices) if devices is not None else first_devices(num_gpus, backend)
    data = load(dataset, dtype) if isinstance(dataset, str) else dataset
    n = len(data.train_X)
    _check_settings(lr, epochs, seed, dtype, len(devices))
    check_fits(data, model, dtype)

    stepper = make_optimizer(optimizer, momentum)
    start = [p.astype(dtype) for p in model.initial(np.random.default_rng(seed))]
    options = {
        "algorithm": algorithm,
        "bucket_bytes": bucket_bytes,
        "schedule": schedule,
        "micro_batches": micro_batches,
        "stages": stages,
    }
    split = make_strategy(
        strategy, [B.array(p) for p in start], devices, model, stepper, options
    )
    _check_last_batch(n, batch_size, *split.shares)
    history = History(
        {
            "backend": B.name,
            "model": model.name,
            "dataset": data.name,
            "dtype": dtype,
            "batch_size": batch_size,
            "lr": lr,
            "momentum": momentum,
            "seed": seed,
            "optimizer": optimizer if isinstance(optimizer, str) else repr(optimizer),
            "strategy": strategy,
            **{
                name: getattr(value, "__name__", value)  # a plan is a function
                for name in STRATEGIES[strategy].options
                for value in [getattr(split, name)]
            },
        },
        [str(device) for device in devices],
    )
    with progress(epochs * n, " images", f"{model.name} on {len(devices)}") as bar:
        for epoch in range(epochs):
            losses: list[Tensor] = []
            began = time.perf_counter()
            with ledger() as moved:
                for X, y in batches(
                    data.train_X, data.train_y, batch_size, seed, epoch
                ):
                    losses += split.step(B.array(X), B.array(y), lr)
                    bar.update(len(X))
                loss = sum(float(B.numpy(part)) for part in losses) / data.train_y.size
                B.synchronize()
            seconds = time.perf_counter() - began
            history.device_params, places = split.replicas()
            accuracy = evaluate(
                history.device_params, data.test_X, data.test_y, places, model=model
            )
            history.epochs.append(Epoch(loss, accuracy, seconds, moved.bytes))
            bar.set_postfix(loss=f"{loss:.3f}", accuracy=f"{accuracy:.3f}")
    return history


def _check_settings(
    lr: float, epochs: int, seed: int, dtype: str, devices: int
) -> None:
    if dtype not in ("float32", "float64"):
        raise InvalidInput(f"expected dtype float32 or float64, got {dtype!r}")
    if not lr > 0:
        raise InvalidInput(f"expected a learning rate above 0, got {lr!r}; try 0.05")
    if epochs < 1:
        raise InvalidInput(f"expected at least 1 epoch, got {epochs!r}")
    if seed < 0:
        raise InvalidInput(f"expected a seed of at least 0, got {seed!r}")
    if devices < 1:
        raise InvalidInput("expected at least 1 device, got an empty list")


def _check_last_batch(n: int, batch_size: int, shares: int, of: str) -> None:
    smallest = n - (batch_count(n, batch_size) - 1) * batch_size
    if smallest < shares:
        raise InvalidInput(
            f"the last batch of every epoch would hold {smallest} of {n} examples, "
            f"fewer than {shares} {of}; choose another batch size or fewer {of}"
        )
