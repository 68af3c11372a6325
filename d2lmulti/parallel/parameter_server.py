"""A parameter server: workers push gradients and pull weights, event by event.

The weights are on the CPU, or in shards on several servers. Workers need not
synchronize, so a gradient may be computed from weights that have changed since then:
its *staleness* is counted. At the end, TF-Slim's deployment: one set
of variables on the CPU, clones of the model on GPUs. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..backends import backend_of, element_count, itemsize
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_choice, check_count, check_list, check_positive
from ..comm.devices import Device, devices
from ..comm.group import local_group
from ..errors import InvalidInput
from ..events import notify, observers
from ..models import get_model
from ..models.networks import Model, framework_errors, losses_of
from ..observe.push_pull import Event, check_mode
from ..optimizers import SGD, Optimizer
from ..plans.placement import server_sizes, shard_to_servers
from ..plans.rounds import make_round
from .step import Step, load


class Applied(NamedTuple):
    """One gradient that an update used."""

    worker: int
    version: int  # number of updates, this one included
    staleness: int  # updates between the weights of its computation and this one


class ParameterServer:
    """Weights on `servers` servers of this process, and k workers that push and pull.

    mode `sync`: one update when all workers have pushed, from the sum in rank order.
    `async`: one update per push. `bounded`: the same, but a worker may pull only while
    it is at most `staleness` steps ahead of the slowest. With `backups` in `sync`, the
    update takes the first k - backups gradients; a later one is dropped and counted in
    `dropped` (backup workers: Chen et al., 2016). In the ledger workers are ranks 0 to
    k - 1, followed by the servers. Raises `InvalidInput` for no workers, no servers, an
    unknown mode, a missing or negative staleness, and too many backups.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        devices: Sequence[AnyDevice],
        lr: float,
        *,
        servers: int = 1,
        mode: str = "sync",
        staleness: int | None = None,
        backups: int = 0,
        placement: str = "greedy",
        optimizer: Optimizer | None = None,
    ) -> None:
        check_list("params", params, "tensors")
        check_list("devices", devices, "devices", hint="use devices(1)")
        check_mode(mode, len(devices), staleness, backups)
        check_positive("lr", lr, "try 0.05")
        B = backend_of(params[0])
        self.lr, self.mode, self.staleness, self.backups = lr, mode, staleness, backups
        self.devices = list(devices)
        sizes = [element_count(p) for p in params]
        self.parts = shard_to_servers(sizes, servers, placement)
        self._sizes = server_sizes(self.parts, servers)
        self.server_bytes = [size * itemsize(params[0]) for size in self._sizes]
        self.version = 0  # number of updates
        self.applied: list[Applied] = []
        self.dropped = 0  # gradients that arrived after their update
        self._steps = [0] * len(devices)  # of each worker
        # Shard i holds part i of `parts`, flattened, in storage of its own.
        self._shards = [
            load(B.read(params[part.parameter], part.first, part.last), "cpu")
            for part in self.parts
        ]
        self._replicas = [[B.copy_to(p, device) for p in params] for device in devices]
        for tensors in (self._shards, *self._replicas):
            for x in tensors:
                B.attach_grad(x)
        self._optimizer = optimizer or SGD()
        self._state = self._optimizer.init(self._shards)
        self._pulled: dict[int, int] = {}  # worker -> version it computes from
        self._pushed: dict[int, list[Tensor]] = {}  # gradients of the next update

    def pull(self, worker: int) -> list[Tensor]:
        """Copy the weights into the worker's replica and return it.

        Raises `InvalidInput` for a worker that would have to wait: no other worker can
        push while this process waits.
        """
        check_count("worker", worker, min=0, max=len(self.devices) - 1)
        if late := self._must_wait_for(worker):
            raise InvalidInput(
                f"worker {worker} has to wait for a push of workers "
                f"{', '.join(map(str, late))} before it may pull (mode {self.mode!r}); "
                "push for them first"
            )
        replica = self._replicas[worker]
        self._write_weights(replica)
        for p in replica:
            backend_of(p).clear_grad_(p)
        self._count(worker, pull=True)
        self._pulled[worker] = self.version
        return replica

    def push(self, worker: int, grads: Sequence[Tensor]) -> None:
        """Send the worker's gradients to the servers, which apply them as `mode` says.

        They are sums over examples, divided by the number of examples of the whole
        update. Raises `InvalidInput` for a push without a pull before it, and for
        gradients in other shapes than the parameters.
        """
        check_count("worker", worker, min=0, max=len(self.devices) - 1)
        if worker not in self._pulled:
            raise InvalidInput(
                f"worker {worker} pushes a gradient of weights it has not pulled since "
                "its last push; call pull(worker), compute, then push"
            )
        check_list("grads", grads, "tensors")
        shapes = [tuple(g.shape) for g in grads]
        if shapes != [tuple(p.shape) for p in self._replicas[worker]]:
            raise InvalidInput(
                f"expected one gradient of its shape for each parameter, got {shapes}"
            )
        B = backend_of(grads[0])
        self._count(worker, pull=False)
        self._steps[worker] += 1
        if self.backups and self._pulled[worker] < self.version:
            self.dropped += 1  # the update did not use it
            del self._pulled[worker]
            return
        self._pushed[worker] = [
            B.copy_to(B.read(grads[part.parameter], part.first, part.last), "cpu")
            for part in self.parts
        ]
        needed = len(self.devices) - self.backups if self.mode == "sync" else 1
        if len(self._pushed) == needed:
            self._apply()

    def weights(self) -> list[Tensor]:
        """Return a copy of the current weights on the CPU, which is not counted."""
        copies = [backend_of(p).copy_to(p, "cpu") for p in self._replicas[0]]
        self._write_weights(copies)
        return copies

    def _write_weights(self, params: Sequence[Tensor]) -> None:
        for part, shard in zip(self.parts, self._shards, strict=True):
            B = backend_of(shard)
            B.write_(params[part.parameter], part.first, part.last, B.detach(shard))

    def _apply(self) -> None:
        B = backend_of(self._shards[0])
        for i, (_, grads) in enumerate(sorted(self._pushed.items())):
            for shard, g in zip(self._shards, grads, strict=True):
                B.write_(B.grad(shard), 0, element_count(g), g, add=i > 0)
        self._optimizer.step_(self._shards, self._state, self.lr, n=1)
        for worker in sorted(self._pushed):
            staleness = self.version - self._pulled.pop(worker)
            self.applied.append(Applied(worker, self.version + 1, staleness))
        self.version += 1
        self._pushed.clear()

    def _must_wait_for(self, worker: int) -> list[int]:
        workers = range(len(self.devices))
        if self.mode == "sync":
            has_pushed = worker in self._pushed
            return [w for w in workers if has_pushed and w not in self._pushed]
        if self.staleness is None:
            return []
        needed = self._steps[worker] - self.staleness
        return [w for w in workers if self._steps[w] < needed]

    def _count(self, worker: int, pull: bool) -> None:
        """Report the messages of a pull, or a push, to the observers."""
        if observers.get():
            servers = [len(self.devices) + server for server in range(len(self._sizes))]
            source, target = (servers, worker) if pull else (worker, servers)
            this_round = make_round(source, target, 0, self._sizes, add=not pull)
            notify("on_round", this_round, itemsize(self._shards[0]))


def run_events(
    server: ParameterServer,
    events: Iterable[Event],
    gradient: Callable[[Event, list[Tensor]], list[Tensor]],
) -> None:
    """Execute events in order: pull weights, push real gradients.

    `gradient(event, params)` computes the gradients that the worker pushes, from the
    weights that it pulled: its replica still has them, however late the push is.
    """
    replicas: dict[int, list[Tensor]] = {}
    for event in events:
        if event.kind == "pull":
            replicas[event.worker] = server.pull(event.worker)
        else:
            server.push(event.worker, gradient(event, replicas[event.worker]))


_CPU = Device("cpu")


class Place(NamedTuple):
    """A device of a job's task; without servers there is one process and no job."""

    device: Device
    job: str = ""
    task: int = 0

    def __str__(self) -> str:
        return f"{self.job}:{self.task} {self.device}" if self.job else str(self.device)


@dataclass(frozen=True)
class DeploymentConfig:
    """The devices of variables, inputs, optimizer, and clones.

    num_clones: copies of the model per replica, one per GPU (simulated if need be);
    clone_on_cpu: put them all on the CPU. num_replicas: worker processes, of which this
    is number replica_id; num_ps_tasks: servers that store the variables, 0 for none.
    """

    num_clones: int = 1  #: copies of the model, one per GPU
    clone_on_cpu: bool = False  #: put them all on the CPU
    replica_id: int = 0  #: of this process
    num_replicas: int = 1  #: worker processes
    num_ps_tasks: int = 0  #: servers of variables
    backend: str | None = field(default=None, kw_only=True)  #: the framework

    def __post_init__(self) -> None:
        check_count("num_clones", self.num_clones)
        if not 0 <= self.replica_id < self.num_replicas:
            raise InvalidInput(
                f"expected a replica_id from 0 to {self.num_replicas - 1}, got "
                f"{self.replica_id}"
            )
        if self.num_ps_tasks < (self.num_replicas > 1):
            raise InvalidInput(
                f"expected at least one of num_ps_tasks for {self.num_replicas} "
                f"replicas, got {self.num_ps_tasks}: servers hold the shared variables"
            )

    def variables_device(self, number: int = 0) -> Place:
        """Return the place of variable `number`: a CPU, of the servers in turn."""
        if self.num_ps_tasks:
            return Place(_CPU, "ps", number % self.num_ps_tasks)
        return Place(_CPU)

    def inputs_device(self) -> Place:
        """Return the place where batches are read: this worker's CPU."""
        return self._here(_CPU)

    def optimizer_device(self) -> Place:
        """Return the place where gradients are summed: this worker's CPU."""
        return self._here(_CPU)

    def clone_device(self, i: int) -> Place:
        """Return the place where clone i computes."""
        if self.clone_on_cpu:
            return self._here(_CPU)
        return self._here(devices(self.num_clones, self.backend)[i])

    def _here(self, device: Device) -> Place:
        if self.num_ps_tasks:
            return Place(device, "worker", self.replica_id)
        return Place(device)


def train_clones(
    X: Tensor,
    y: Tensor,
    params: Sequence[Tensor],
    config: DeploymentConfig,
    lr: float,
    *,
    model: str | Model = "lenet",
    optimizer: Optimizer | None = None,
    state: Sequence[Tensor] = (),
    scale: str = "clones",
    weight_decay: float = 0.0,
) -> float:
    """Take one step on a batch: clones compute, the CPU sums and updates `params`.

    X (n, ...), y (n,): the whole batch, on the CPU. `params` are on the CPU with
    gradients attached (`get_params(params, "cpu")`) and are updated in place. scale
    `clones` is TF-Slim's: each clone's *mean* loss divided by the number of clones;
    `examples` divides the sums by n. weight_decay / 2 times the sum of all squared
    weights is added to the first clone's loss only, so that it counts once. Returns the
    loss.

    In the ledger clones are ranks 0 to k-1, the CPU, or each server, the ranks after
    them. Raises `InvalidInput` as `split_batch` does, for an unknown scale, and for a
    model with statistics besides its weights.
    """
    model, k = get_model(model), config.num_clones
    check_list("params", params, "tensors", hint='use get_params(params, "cpu")')
    check_choice("scale", scale, ("clones", "examples"))
    if model.buffers:
        raise InvalidInput(
            f"expected a model of weights only, got {model.name}, whose statistics "
            "each clone would change in its own copy; use train_batch"
        )
    places = [config.clone_device(i).device for i in range(k)]
    step = Step(
        X, y, places, lr, optimizer=optimizer, group=local_group(k),
        vocabulary=model.vocabulary,
    )  # fmt: skip
    B, ((Xs, ys),) = step.B, step.split()
    clones = [[B.copy_to(p, place) for p in params] for place in places]
    for p in (p for clone in clones for p in clone):
        B.attach_grad(p)
    _count(params, config, add=False)
    losses = []
    with B.record(), framework_errors(model.name, X):
        for clone, X_shard, y_shard in zip(clones, Xs, ys, strict=True):
            n = len(y_shard) * k if scale == "clones" else len(X)
            logits = model.forward(B, clone, X_shard)
            losses.append(losses_of(B, logits, y_shard, y).sum() / n)
        if weight_decay:
            squares = [(p * p).sum() for p in clones[0]]
            losses[0] = losses[0] + sum(squares[1:], squares[0]) * (weight_decay / 2)
    B.backward(losses)
    for i, p in enumerate(params):
        for j, clone in enumerate(clones):
            B.write_(B.grad(p), 0, element_count(p), B.grad(clone[i]), add=j > 0)
    _count(params, config, add=True)
    step.optimizer.step_(params, state, lr, n=1)  # divided already
    return sum(float(B.numpy(loss)) for loss in losses)


def _count(params: Sequence[Tensor], config: DeploymentConfig, add: bool) -> None:
    """Report the weights sent to the clones, or (`add`) the gradients sent back."""
    if config.clone_on_cpu and not config.num_ps_tasks:
        return  # they are on that CPU already
    clones = list(range(config.num_clones))
    for i, p in enumerate(params):
        home = config.num_clones + config.variables_device(i).task
        source, target = (clones, home) if add else (home, clones)
        this_round = make_round(source, target, 0, element_count(p), add)
        notify("on_round", this_round, itemsize(p))
