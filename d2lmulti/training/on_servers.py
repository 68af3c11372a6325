"""Train with a parameter server on a modeled clock: real gradients, modeled seconds.

Workers take mini-batches from one queue, so every mode uses the same examples. The
modes differ in which worker waits, and in the staleness of the applied gradients.
Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..backends import get_backend
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_choice, check_count
from ..comm.devices import devices as first_devices
from ..data import DTYPES, Dataset, batch_count, batches
from ..errors import InvalidInput
from ..models import get_model
from ..models.networks import Model, losses_of
from ..observe.link import Link
from ..observe.push_pull import Event, check_times, push_pull_events, worker_seconds
from ..optimizers import SGD
from ..parallel.parameter_server import ParameterServer, run_events
from ..plans.rounds import even_bounds
from .loop import check_data, check_fits

PROBE = 256  # training examples over which the curve's loss is a mean


class Pushed(NamedTuple):
    """One gradient that was applied."""

    seconds: float  # modeled time of its push
    worker: int
    loss: float  # mean over its mini-batch, at the weights of its computation
    version: int  # number of updates, this one included
    staleness: int  # updates between those weights and this one


@dataclass
class ServerHistory:
    """A finished run: its events, every gradient, the loss over time, the weights."""

    mode: str  #: sync, async or bounded
    workers: int  #: their number
    #: pulls and pushes, in time
    events: list[Event] = field(default_factory=list, repr=False)
    #: every gradient that was applied
    pushes: list[Pushed] = field(default_factory=list, repr=False)
    #: (seconds, loss)
    curve: list[tuple[float, float]] = field(default_factory=list, repr=False)
    #: the servers' at the end
    params: list[Tensor] = field(default_factory=list, repr=False)
    server_bytes: list[int] = field(default_factory=list)  #: what each server holds
    dropped: int = 0  #: gradients that arrived after their update, with backups

    @property
    def seconds(self) -> float:
        """Return the modeled seconds of the whole run."""
        return self.events[-1].seconds

    @property
    def staleness(self) -> list[int]:
        """Return the measured staleness of every gradient, in the order of updates."""
        return [push.staleness for push in self.pushes]


def train_on_servers(
    workers: int = 4,
    batch_size: int = 128,
    lr: float = 0.05,
    *,
    servers: int = 1,
    mode: str = "sync",
    staleness: int | None = None,
    backups: int = 0,
    epochs: int = 1,
    momentum: float = 0.0,
    seed: int = 0,
    dtype: str = "float64",
    dataset: str | Dataset = "digits",
    model: str | Model = "mlp",
    placement: str = "greedy",
    seconds: np.ndarray | None = None,
    link: Link | None = None,
    backend: str | None = None,
    devices: Sequence[AnyDevice] | None = None,
) -> ServerHistory:
    """Train on `workers` workers and return the history; see `ParameterServer`.

    With `backups` an update is the mean of the first `workers - backups` gradients.
    `batch_size` is that of all workers together: each takes 1/workers of it at a time.
    `seconds` (workers, steps) are compute times, by default 1 each (`worker_seconds`).
    The curve is the loss over the first 256 training examples, measured after each
    update in `sync`, else after each `workers` gradients. Raises `InvalidInput` for
    settings that do not fit together.
    """
    batch_size = check_count("batch_size", batch_size)
    epochs = check_count("epochs", epochs)
    seed = check_count("seed", seed, min=0, max=None)
    check_choice("dtype", dtype, DTYPES)
    B, model = get_backend(backend), get_model(model)
    if model.buffers:
        raise InvalidInput(
            f"expected a model without statistics, got {model.name}; take lenet or mlp"
        )
    devices = first_devices(workers, backend) if devices is None else devices
    data = check_data(dataset, dtype)
    initial = [p.astype(dtype) for p in model.initial(np.random.default_rng(seed))]
    check_fits(B, data, model, initial, batch_size, workers)
    total = batch_count(len(data.train_X), batch_size) * epochs * workers
    times = worker_seconds(workers, total) if seconds is None else check_times(seconds)
    if not workers == len(devices) == len(times):
        raise InvalidInput(
            f"expected a device and a row of times for each of {workers} workers, got "
            f"{len(devices)} devices and {len(times)} rows"
        )
    server = ParameterServer(
        [B.array(p) for p in initial],
        devices,
        lr,
        servers=servers,
        mode=mode,
        staleness=staleness,
        backups=backups,
        placement=placement,
        optimizer=SGD(momentum),
    )
    history = ServerHistory(mode, workers, server_bytes=server.server_bytes)
    queue = _mini_batches(data, batch_size, workers, seed, epochs)
    current: dict[int, tuple[np.ndarray, np.ndarray, int]] = {}
    losses: dict[int, float] = {}  # of pushed gradients that are not applied yet

    def events() -> Iterator[Event]:
        for event in push_pull_events(
            mode,
            times,
            total,
            staleness=staleness,
            backups=backups,
            server_bytes=server.server_bytes,
            link=link,
        ):
            if event.kind == "pull":
                current[event.worker] = next(queue)
            yield event
            history.events.append(event)
            for applied in server.applied[len(history.pushes) :]:
                loss = losses.pop(applied.worker)
                history.pushes.append(
                    Pushed(event.seconds, applied.worker, loss, *applied[1:])
                )
                if len(history.pushes) % (workers - backups) == 0:
                    loss = _mean_loss(B, model, server.weights(), data)
                    history.curve.append((event.seconds, loss))

    def gradient(event: Event, params: list[Tensor]) -> list[Tensor]:
        X, y, batch_examples = current[event.worker]
        with B.record():
            logits = model.forward(B, params, B.array(X, server.devices[event.worker]))
            labels = B.array(y, server.devices[event.worker])
            loss = losses_of(B, logits, labels).sum()
            # An update uses the whole batch, the collected parts of it, or this part.
            collected = len(X) * (workers - backups) if backups else batch_examples
            scaled = loss / (collected if mode == "sync" else len(X))
        B.backward([scaled])
        losses[event.worker] = float(B.numpy(loss)) / len(X)
        return [B.grad(p) for p in params]

    history.curve.append((0.0, _mean_loss(B, model, server.weights(), data)))
    run_events(server, events(), gradient)
    history.params, history.dropped = server.weights(), server.dropped
    return history


def _mini_batches(
    data: Dataset, batch_size: int, workers: int, seed: int, epochs: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield the workers' parts of every batch and the size of the whole batch."""
    for epoch in range(epochs):
        for X, y in batches(data.train_X, data.train_y, batch_size, seed, epoch):
            for first, last in even_bounds(len(X), workers):
                yield X[first:last], y[first:last], len(X)


def _mean_loss(B: Backend, model: Model, params: list[Tensor], data: Dataset) -> float:
    X, y = data.train_X[:PROBE], data.train_y[:PROBE]
    with B.pause():
        loss = losses_of(B, model.forward_eval(B, params, B.array(X)), B.array(y)).sum()
    return float(B.numpy(loss)) / len(X)
