"""MXNet's real parameter server (`dist_sync`, `dist_async`) behind push and pull.

A `KVStore` belongs to a worker process; scheduler and servers are separate processes
(see `launcher.launch_kvstore`). It can only push and pull, so plans and collectives do
not run on it. Chapter: *parameter_server*.
"""

from __future__ import annotations

import ctypes
import json
import os
import traceback
from collections.abc import Sequence
from typing import Any

import mxnet as mx

from ..backends import mxnet as B
from ..backends.protocol import Tensor
from ..checks import check_choice, check_count
from ..errors import InvalidInput

_OPTIMIZER = 0  # the number of MXNet's command
KINDS = ("dist_sync", "dist_async")
Array = Any  # mx.nd.NDArray


class ServerSGD(mx.optimizer.Optimizer):
    """The server's update from a gradient: the unfused steps of `optimizers.SGD`."""

    def __init__(self, lr: float, momentum: float = 0.0) -> None:
        super().__init__(learning_rate=lr)
        self.step_size, self.momentum = lr, momentum

    def create_state(self, index: object, weight: Array) -> Array:
        return mx.nd.zeros(weight.shape, dtype=weight.dtype)

    def update(self, index: object, weight: Array, grad: Array, state: Array) -> None:
        """Update a weight in place; called in the server's process."""
        try:
            if self.momentum:
                state[:] = state * self.momentum + grad
                grad = state
            weight[:] = weight - grad * self.step_size
        except BaseException:
            # MXNet would print it, leave the weight unchanged, and continue.
            traceback.print_exc()
            os._exit(1)


class KVStore:
    """A worker's client of MXNet's parameter server.

    `dist_sync`: the server waits for all workers, updates once from the sum, and only
    then answers a pull. `dist_async`: it updates at each push. Raises `InvalidInput`
    for another kind, outside a launch and for weights that are not float32.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        kind: str = "dist_sync",
        momentum: float = 0.0,
    ) -> None:
        check_choice("kind", kind, KINDS)
        if os.environ.get("DMLC_ROLE") != "worker":
            raise InvalidInput(
                "expected a worker of a launched group (DMLC_ROLE=worker); start the "
                "program with d2lmulti.processes.launcher.launch_kvstore"
            )
        if wrong := {B.dtype_of(p) for p in params} - {"float32"}:
            # Measured with 1.9.1: the tensors stay float64, their values are rounded.
            raise InvalidInput(
                f"expected float32 weights, got {', '.join(sorted(wrong))}; MXNet's "
                "distributed kvstore would round them to float32 without an error"
            )
        self._kv = mx.kv.create(kind)
        self.worker, self.workers = int(self._kv.rank), int(self._kv.num_workers)
        if path := os.environ.get("D2LMULTI_WORKER_FILE"):  # so that output is ordered
            with open(f"{path}.rank", "w") as file:
                file.write(str(self.worker))
        self._replica = [B.copy_to(p, "cpu") for p in params]
        for p in self._replica:
            B.attach_grad(p)
        self._keys = [str(i) for i in range(len(params))]
        if self.worker == 0:
            # As text: with `set_optimizer` a server would unpickle, and so execute, any
            # data sent to its port.
            self._kv._send_command_to_servers(_OPTIMIZER, json.dumps([lr, momentum]))
        # Ends with a barrier, so no worker pushes to a server without an optimizer.
        self._kv.init(self._keys, [B.detach(p) for p in self._replica])

    def push(self, worker: int, grads: Sequence[Tensor]) -> None:
        """Send this worker's gradients to the servers; does not wait for the update."""
        check_count("worker", worker, min=self.worker, max=self.worker)
        # Copies: the next pull uses the pushed tensor as its buffer and overwrites it.
        self._kv.push(self._keys, [B.copy_to(g, "cpu") for g in grads])

    def pull(self, worker: int) -> list[Tensor]:
        """Return the weights, in `dist_sync` those after every worker's last push."""
        check_count("worker", worker, min=self.worker, max=self.worker)
        values = [B.zeros(p.shape, "float32") for p in self._replica]
        self._kv.pull(self._keys, out=values)
        for p, value in zip(self._replica, values, strict=True):
            B.write_(p, 0, value.size, value)
            B.clear_grad_(p)
        return self._replica


def serve(role: str) -> None:
    """Run a server, or the scheduler, until the workers have finished."""
    # If set before `import mxnet`, the role would start the server in the import.
    os.environ["DMLC_ROLE"] = role
    store = mx.kv.create("dist")

    def command(number: int, body: bytes, _: object) -> None:
        try:
            if number == _OPTIMIZER:
                lr, momentum = map(float, json.loads(body))
                store.set_optimizer(ServerSGD(lr, momentum))
        except BaseException:  # ctypes would print it and continue
            traceback.print_exc()
            os._exit(1)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    call = kind(command)
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, call, None))
