"""A parameter server: workers push gradients and pull weights, event by event.

The weights live on the CPU, or in parts on several servers. Workers need not agree on
when they talk, so a gradient may be computed from weights that have changed since: its
*staleness* is counted here, not assumed. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor, element_count, itemsize
from ..checks import check_count, check_list, check_positive
from ..comm.split import load
from ..errors import InvalidInput
from ..events import notify_round, observers
from ..observe.push_pull import Event, check_backups, check_mode, check_workers
from ..optimizers import Optimizer, check_optimizer
from ..plans.placement import server_sizes, shard_to_servers
from ..plans.rounds import make_round


class PushPull(Protocol):
    """All that a worker sees of a parameter server, ours or MXNet's."""

    def push(self, worker: int, grads: Sequence[Tensor]) -> None:
        """Hand in a gradient, one tensor a parameter, to be applied by the server.

        It is the worker's share of the update: its sum over examples, divided by the
        number of examples that the whole update stands for.
        """

    def pull(self, worker: int) -> list[Tensor]:
        """Get the weights, on the worker's device, with gradients attached."""


class Applied(NamedTuple):
    """One gradient that became part of an update."""

    worker: int
    version: int  # number of updates, this one included
    staleness: int  # updates between the weights it was computed from and this one


class ParameterServer:
    """Weights on `servers` servers of this process, and k workers that push and pull.

    mode `sync`: one update when all workers have pushed, from the sum in rank order.
    `async`: one update a push. `bounded`: the same, but a worker may pull only while it
    is at most `staleness` steps ahead of the slowest. With `backups` in `sync`, the
    update takes the first k - backups gradients; a later one is dropped and counted in
    `dropped` (backup workers: Chen et al., 2016). In the ledger workers are ranks
    0 to k-1 and servers the ranks after them. Raises `InvalidInput` for no workers, no
    servers, an unknown mode, a missing or negative staleness and too many backups.
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
        sizes = [element_count(p) for p in params]
        self.parts = shard_to_servers(sizes, servers, placement)
        self.server_bytes = [
            size * itemsize(params[0]) for size in server_sizes(self.parts, servers)
        ]
        self.lr, self.servers, self.mode, self.staleness = lr, servers, mode, staleness
        self.devices = list(devices)
        self.backups, self.version = backups, 0
        self.applied: list[Applied] = []
        self.dropped = 0  # gradients that came after their update
        self.done = [0] * len(devices)  # steps of each worker
        B = backend_of(params[0])
        # shard[i] holds part i of `parts`, flat, in storage of its own
        self.shard = [
            load(B.read(params[part.parameter], part.first, part.last), "cpu")
            for part in self.parts
        ]
        self._replicas = [[B.copy_to(p, device) for p in params] for device in devices]
        for x in (*self.shard, *(p for replica in self._replicas for p in replica)):
            B.attach_grad(x)
        self._optimizer = check_optimizer(optimizer)
        self._state = self._optimizer.init(self.shard)
        self._pulled: dict[int, int] = {}  # worker -> version it computes from
        self._pushed: dict[int, list[Tensor]] = {}  # this round's gradients, in sync

    def pull(self, worker: int) -> list[Tensor]:
        """Copy the weights into the worker's replica and return it.

        Raises `InvalidInput` for a worker that would have to wait: nobody else can push
        while this process waits.
        """
        self._check_worker(worker)
        late = sorted(self._must_wait_for(worker))
        if late:
            raise InvalidInput(
                f"worker {worker} has to wait for a push of worker"
                f"{'s' * (len(late) > 1)} {', '.join(map(str, late))} before it may "
                f"pull (mode {self.mode!r}); push for them first"
            )
        replica = self._replicas[worker]
        B = backend_of(replica[0])
        for part, weights in zip(self.parts, self.shard, strict=True):
            B.write_(replica[part.parameter], part.first, part.last, B.detach(weights))
        for p in replica:
            B.clear_grad_(p)
        self._count(worker, pull=True)
        self._pulled[worker] = self.version
        return replica

    def push(self, worker: int, grads: Sequence[Tensor]) -> None:
        """Send the gradients to the servers, which apply them as the mode says.

        Raises `InvalidInput` for a push without a pull before it, and for gradients
        that are not one tensor a parameter.
        """
        self._check_worker(worker)
        if worker not in self._pulled:
            raise InvalidInput(
                f"worker {worker} pushes a gradient of weights it has not pulled since "
                "its last push; call pull(worker), compute, then push"
            )
        replica = self._replicas[worker]
        check_list("grads", grads, "tensors")
        if [tuple(g.shape) for g in grads] != [tuple(p.shape) for p in replica]:
            raise InvalidInput(
                f"expected one gradient of its shape for each of {len(replica)} "
                f"parameters, got {[tuple(g.shape) for g in grads]}"
            )
        B = backend_of(grads[0])
        self._pushed[worker] = [
            B.copy_to(B.read(grads[part.parameter], part.first, part.last), "cpu")
            for part in self.parts
        ]
        self._count(worker, pull=False)
        self.done[worker] += 1
        if self.backups and self._pulled[worker] < self.version:
            self.dropped += 1  # its update was made without it
            del self._pushed[worker], self._pulled[worker]
            return
        collect = len(self._replicas) - self.backups
        if self.mode != "sync" or len(self._pushed) == collect:
            self._apply()

    def weights(self) -> list[Tensor]:
        """Copy the current weights to the CPU, to look at: not counted."""
        replica = self._replicas[0]
        B = backend_of(replica[0])
        whole = [B.copy_to(p, "cpu") for p in replica]
        for part, weights in zip(self.parts, self.shard, strict=True):
            B.write_(whole[part.parameter], part.first, part.last, B.detach(weights))
        return whole

    def _apply(self) -> None:
        B = backend_of(self.shard[0])
        for i, (_, grads) in enumerate(sorted(self._pushed.items())):
            for weights, g in zip(self.shard, grads, strict=True):
                B.write_(B.grad(weights), 0, element_count(g), g, add=i > 0)
        self._optimizer.step_(self.shard, self._state, self.lr, n=1)
        self.version += 1
        for worker in sorted(self._pushed):
            since = self.version - 1 - self._pulled.pop(worker)
            self.applied.append(Applied(worker, self.version, since))
        self._pushed.clear()

    def _must_wait_for(self, worker: int) -> list[int]:
        if self.mode == "sync":
            return [
                other
                for other in range(len(self.done))
                if worker in self._pushed and other not in self._pushed
            ]
        if self.staleness is None:
            return []
        allowed = self.done[worker] - self.staleness
        return [other for other, steps in enumerate(self.done) if steps < allowed]

    def _count(self, worker: int, pull: bool) -> None:
        if not observers.get():
            return
        workers, size = len(self._replicas), itemsize(self.shard[0])
        ranks = [workers + server for server in range(self.servers)]
        source, target = (ranks, worker) if pull else (worker, ranks)
        lengths = [amount // size for amount in self.server_bytes]
        notify_round(make_round(source, target, 0, lengths, not pull), size)

    def _check_worker(self, worker: int) -> None:
        check_count("worker", worker, min=0, max=len(self._replicas) - 1)


def run_events(
    server: PushPull,
    events: Iterable[Event],
    gradient: Callable[[Event, list[Tensor]], list[Tensor]],
) -> None:
    """Carry out events in their order: weights at a pull, real gradients at a push.

    `gradient(event, params)` computes what the worker pushes, from the weights that it
    pulled: on a push its replica still holds them, however late that is.
    """
    replicas: dict[int, list[Tensor]] = {}
    for event in events:
        if event.kind == "pull":
            replicas[event.worker] = server.pull(event.worker)
        else:
            server.push(event.worker, gradient(event, replicas[event.worker]))
