"""Horovod under MXNet and PyTorch: it has collectives, but no point-to-point messages.

Under `horovodrun` Horovod provides the rendezvous; under another launcher rank 0 serves
it on MASTER_PORT. All calls have one name, so ranks that differ in shape, dtype, or
operation get an error from Horovod. With different names they would wait forever.
Chapter: *horovod*. Source: Sergeev and Del Balso, Horovod (2018).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from ..backends import backend_of, element_count, get_backend
from ..checks import check_contiguous, check_native
from ..comm.group import Combine, Work
from ..errors import InvalidInput
from ..plans.rounds import Round, even_bounds
from .engine import ProcessEngine, wait_for_server
from .process_group import ProcessInfo, rendezvous_address

_FRONT_ENDS = ("torch", "mxnet")
# Collective -> its name in each front end; with MXNet it runs asynchronously.
_FUNCTIONS = {
    "allreduce": ("allreduce_async_", "allreduce_"),
    "broadcast": ("broadcast_async_", "broadcast_"),
    "allgather": ("allgather_async", "allgather"),
    "reduce_scatter": ("reducescatter_async", "reducescatter"),
}


def connect(info: ProcessInfo) -> Horovod:
    """Pass Horovod its rank; it starts with the first call, or with your `init`."""
    return Horovod(info, _prepare(info))


class Horovod(ProcessEngine):
    """The engine of one rank.

    A process can load one front end of Horovod: that of the first tensor.
    """

    name = "horovod"
    point_to_point = False
    native = frozenset(_FUNCTIONS)
    reducible: Collection[str] | None = (
        "float32",
        "float64",
        "float16",
        "int64",
        "int32",
    )

    def __init__(self, info: ProcessInfo, server: Any = None) -> None:
        super().__init__(info)
        self._server = server
        self._front_end = ""
        self._under_way = 0

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Raise an error: Horovod has no point-to-point messages."""
        raise InvalidInput(
            "expected algorithm='native' on the engine horovod, got a plan of messages "
            f"between two ranks; it has {', '.join(sorted(self.native))} of its own. "
            "Plans, tensor and pipeline parallelism run on the engine shared_memory"
        )

    def start(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> Work:
        """Begin one of the collectives named in `native` on this rank's tensor.

        Raises `PeerError` with Horovod's own message.
        """
        check_native(self, what)
        (x,) = data
        B = backend_of(x)
        hvd = self._start(B.name)
        if B.name == "torch":
            check_contiguous(x.is_contiguous())
        # Built without NCCL, Horovod needs tensors in CPU memory.
        device, size = B.device_of(x), element_count(x)
        via_cpu = device.startswith("gpu") and not hvd.nccl_built()
        staged = B.copy_to(x, "cpu") if via_cpu else B.detach(x)
        options: dict[str, Any] = {}
        if what == "broadcast":
            options["root_rank"] = root
        elif what != "allgather":
            options["op"] = hvd.Sum if op == "sum" else hvd.Max
        by_hand = what == "reduce_scatter" and op != "sum"  # Horovod's own only sums
        if what != "allgather":
            staged = B.read(staged, 0, size)  # a flat view
        wait = self._begin(hvd, "allreduce" if by_hand else what, staged, options)

        def end() -> list[Any] | None:
            result = wait()
            if by_hand:
                bounds = even_bounds(size, self.size)[self.rank]
                return [B.copy_to(B.read(staged, *bounds), device)]
            if what in ("allgather", "reduce_scatter"):
                return [B.copy_to(result, device) if via_cpu else result]
            if via_cpu:
                B.write_(x, 0, size, staged)
            return None

        return Work(end)

    def close(self) -> None:
        if self._front_end:
            import_module(f"horovod.{self._front_end}").shutdown()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        B = get_backend(self._front_end or _likely_front_end())
        (rows,) = self.start("allgather", [B.array(values[None])]).wait()
        return list(B.numpy(rows))

    def _begin(
        self, hvd: Any, what: str, x: Any, options: dict[str, Any]
    ) -> Callable[[], Any]:
        """Call one of Horovod's functions; return one that waits for the result."""
        function = getattr(hvd, _FUNCTIONS[what][_FRONT_ENDS.index(self._front_end)])
        # Concurrent calls need different names, the same on all ranks.
        name = f"d2lmulti.{self._under_way}"
        self._under_way += 1
        with self._waiting():
            handle = function(x, name=name, **options)

        def wait() -> Any:
            with self._waiting():
                self._under_way -= 1
                if self._front_end == "torch":
                    return hvd.synchronize(handle)
                handle.wait_to_read()  # only now do errors of MXNet's engine surface
                return handle.as_np_ndarray()

        return wait

    def _start(self, framework: str) -> Any:
        """Return the front end for a framework; start it in the first call."""
        if framework not in _FRONT_ENDS:
            raise InvalidInput(
                f"expected tensors of torch or mxnet, got {framework}; Horovod has no "
                f"front end for it; use the engine {framework} or shared_memory"
            )
        if self._front_end and framework != self._front_end:
            raise InvalidInput(
                f"expected {self._front_end} tensors as in the first call, got "
                f"{framework}; one process can hold one front end of Horovod only"
            )
        get_backend(framework)  # the framework must be loaded first
        hvd = import_module(f"horovod.{framework}")
        if not self._front_end:
            with self._waiting():
                hvd.init()
            self._front_end = framework
        return hvd


def _likely_front_end() -> str:
    """Return a front end without a tensor: by environment, then by loaded modules."""
    chosen = os.environ.get("D2LMULTI_BACKEND")
    if chosen:
        return get_backend(chosen).name
    return next((name for name in _FRONT_ENDS if name in sys.modules), "torch")


def _prepare(info: ProcessInfo) -> Any:
    """Pass Horovod its rank, unless `horovodrun` did; on rank 0, serve the others."""
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ and "HOROVOD_RANK" in os.environ:
        return None
    address, port = rendezvous_address()
    machine = info.rank // info.local_size
    settings = {
        "HOROVOD_RANK": info.rank,
        "HOROVOD_SIZE": info.size,
        "HOROVOD_LOCAL_RANK": info.local_rank,
        "HOROVOD_LOCAL_SIZE": info.local_size,
        "HOROVOD_CROSS_RANK": machine,
        "HOROVOD_CROSS_SIZE": info.size // info.local_size,
        "HOROVOD_HOSTNAME": f"machine-{machine}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in settings.items()})
    if address in ("127.0.0.1", "localhost"):
        os.environ.setdefault("HOROVOD_GLOO_IFACE", "lo")
    if info.rank:
        wait_for_server(address, port)
        return None
    http = import_module("horovod.runner.http.http_server")
    server = http.RendezvousHTTPServer((address, port), http.RendezvousHandler, 0)
    Thread(target=server.serve_forever, daemon=True).start()
    return server
