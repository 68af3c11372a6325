"""A parameter server: workers push gradients and pull weights, event by event.

The weights live on the CPU, or in shards on several servers. Workers need not
synchronize, so a gradient may be computed from weights that have changed since then:
its *staleness* is counted here, not assumed. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..backends import backend_of, element_count, itemsize
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_count, check_list, check_positive
from ..comm.split import load
from ..errors import InvalidInput
from ..events import notify_round, observers
from ..observe.push_pull import Event, check_backups, check_mode, check_workers
from ..optimizers import Optimizer, check_optimizer
from ..plans.placement import server_sizes, shard_to_servers
from ..plans.rounds import make_round


class Applied(NamedTuple):
    """One gradient that became part of an update."""

    worker: int
    version: int  # number of updates, this one included
    staleness: int  # updates between the weights it was computed from and this one


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
        check_workers(len(devices))
        check_mode(mode, staleness)
        check_backups(mode, backups, len(devices))
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
        self.dropped = 0  # gradients that came after their update
        self._steps = [0] * len(devices)  # of each worker
        # Shard i holds part i of `parts`, flat, in storage of its own.
        self._shards = [
            load(B.read(params[part.parameter], part.first, part.last), "cpu")
            for part in self.parts
        ]
        self._replicas = [[B.copy_to(p, device) for p in params] for device in devices]
        for tensors in (self._shards, *self._replicas):
            for x in tensors:
                B.attach_grad(x)
        self._optimizer = check_optimizer(optimizer)
        self._state = self._optimizer.init(self._shards)
        self._pulled: dict[int, int] = {}  # worker -> version it computes from
        self._pushed: dict[int, list[Tensor]] = {}  # gradients of the next update

    def pull(self, worker: int) -> list[Tensor]:
        """Copy the weights into the worker's replica and return it.

        Raises `InvalidInput` for a worker that would have to wait: nobody else can push
        while this process waits.
        """
        self._check_worker(worker)
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
        self._check_worker(worker)
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
            self.dropped += 1  # its update was made without it
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
            notify_round(this_round, itemsize(self._shards[0]))

    def _check_worker(self, worker: int) -> None:
        check_count("worker", worker, min=0, max=len(self.devices) - 1)


def run_events(
    server: ParameterServer,
    events: Iterable[Event],
    gradient: Callable[[Event, list[Tensor]], list[Tensor]],
) -> None:
    """Execute events in order: pull weights, push real gradients.

    `gradient(event, params)` computes what the worker pushes, from the weights that it
    pulled: its replica still holds them on a push, however late that is.
    """
    replicas: dict[int, list[Tensor]] = {}
    for event in events:
        if event.kind == "pull":
            replicas[event.worker] = server.pull(event.worker)
        else:
            server.push(event.worker, gradient(event, replicas[event.worker]))
