"""Buckets: gradients are all-reduced in flat vectors, as soon as they are ready.

One all-reduce per parameter pays the latency of a message too often; one for all
parameters starts only when the backward pass is over. Buckets of neighboring
parameters, the last layer's first, are reduced while earlier layers still compute.
Where the framework allows it, gradients then stay in the bucket and are not copied
back.
Chapter: *allreduce*. Source: Li et al., PyTorch Distributed (2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Lock

from ..backends import backend_of, element_count, nbytes
from ..backends.protocol import Tensor
from ..checks import check_choice, check_count, check_list, check_lists, check_same
from ..comm.group import Group, Op, Work, check_algorithm, group_for, start_allreduce
from ..errors import InvalidInput
from ..events import notify
from ..optimizers import zeros_like
from ..plans.rounds import Plan

DEFAULT_BYTES = 25 * 2**20  # the default of PyTorch's DistributedDataParallel


def cut_into_buckets(params: Sequence[Tensor], bucket_bytes: int) -> list[list[int]]:
    """Group parameter numbers, the last first, into buckets.

    As in PyTorch's DistributedDataParallel, a bucket is full when it has reached
    `bucket_bytes`; with 1, every parameter has its own. A bucket holds one dtype.
    """
    check_count("bucket_bytes", bucket_bytes)
    buckets: list[list[int]] = []
    filled, dtype = bucket_bytes, ""
    for i in reversed(range(len(params))):
        own_dtype = backend_of(params[i]).dtype_of(params[i])
        if filled >= bucket_bytes or own_dtype != dtype:
            buckets.append([])
            filled, dtype = 0, own_dtype
        buckets[-1].append(i)
        filled += nbytes(params[i])
    return buckets


@contextmanager
def reduce_in_buckets(
    device_params: Sequence[Sequence[Tensor]],
    bucket_bytes: int = DEFAULT_BYTES,
    algorithm: str | Plan = "ring",
    group: Group | None = None,
    op: Op = "sum",
) -> Iterator[list[list[int]]]:
    """Sum the gradients of backward passes in the block over devices, by buckets.

    For one step; see `GradientBuckets`, which is made once for many steps.
    """
    buckets = GradientBuckets(device_params, bucket_bytes, algorithm, group, op)
    with buckets.reduce():
        yield buckets.buckets


class GradientBuckets:
    """Gradients that are summed over devices bucket by bucket in the backward pass.

    The parameters may be those of a module, one list per device:

        buckets = GradientBuckets([list(net.parameters())], op="mean")
        with buckets.reduce():
            loss(net(X), y).backward()

    `buckets` are lists of parameter numbers, reduced in this order, so that every
    process makes the same calls. With the algorithm `native` of an engine, all-reduces
    run during the pass. Frozen parameters (requires_grad=False, stop_gradient=True) are
    left out. A parameter without a gradient raises an error.
    """

    def __init__(
        self,
        device_params: Sequence[Sequence[Tensor]],
        bucket_bytes: int = DEFAULT_BYTES,
        algorithm: str | Plan = "ring",
        group: Group | None = None,
        op: Op = "sum",
    ) -> None:
        check_list("device_params", device_params, "lists of parameters, one a device")
        check_lists("device_params", device_params, len(device_params))
        check_algorithm(algorithm)
        self.op: Op = check_choice("op", op, ("sum", "mean", "max"))  # type: ignore[assignment]
        self.device_params, self.algorithm = device_params, algorithm
        self.group = group_for(len(device_params), group)
        self.trained = _trained(device_params)
        buckets = cut_into_buckets(
            [device_params[0][i] for i in self.trained], bucket_bytes
        )
        self.buckets = [[self.trained[j] for j in bucket] for bucket in buckets]
        # Parameter by parameter, so that waiting from the end visits all devices.
        self.params = [params[i] for i in self.trained for params in device_params]
        self.flats: dict[int, list[Tensor]] = {}  # by the bucket, one per device
        self.lock = Lock()  # gradients of GPUs are reported from other threads

    @contextmanager
    def reduce(self) -> Iterator[None]:
        """Sum (or average, by `op`) the gradients of the block's backward pass.

        At the end of the block all are summed, in place. Open ledgers get a mark when a
        gradient is ready on all devices. Raises `InvalidInput` when a second backward
        pass reaches a parameter whose bucket has been reduced.
        """
        self._missing = dict.fromkeys(self.trained, len(self.device_params))  # devices
        self._late: set[int] = set()
        self._unused: set[int] = set()
        self._works: list[Work] = []  # the all-reduce of every bucket so far
        with backend_of(self.params[0]).on_grad_ready(self.params, self._ready):
            yield
        for number, work in enumerate(self._works):
            work.wait()
            self._unpack(number)
        if self._late:
            raise InvalidInput(
                "expected one backward pass to finish every gradient, but parameters "
                f"{sorted(self._late)} got more after they had been reduced; reduce "
                "them after the last pass, without buckets"
            )
        if self._unused:
            raise InvalidInput(
                "expected the backward pass to give every parameter a gradient, got "
                f"none for parameters {sorted(self._unused)}, which counted as zeros; "
                "use them, freeze them, or leave them out"
            )

    def _ready(self, index: int) -> None:
        """Count one gradient; reduce the next bucket when all of its own are ready."""
        i = self.trained[index // len(self.device_params)]
        with self.lock:
            if not self._missing[i]:
                self._late.add(i)
                return
            self._missing[i] -= 1
            if not self._missing[i]:
                notify("on_mark", f"gradient {i} ready")
            while (number := len(self._works)) < len(self.buckets) and not any(
                self._missing[i] for i in self.buckets[number]
            ):
                with backend_of(self.params[0]).pause():
                    flats = self._pack(number)
                    work = start_allreduce(flats, self.algorithm, self.group, self.op)
                self._works.append(work)

    def _pack(self, number: int) -> list[Tensor]:
        """Collect a bucket's gradients in one vector per device."""
        bucket = self.buckets[number]
        rows = [[_grad(params[i]) for i in bucket] for params in self.device_params]
        for row in rows:
            self._unused |= {i for i, g in zip(bucket, row, strict=True) if g is None}
        if len(bucket) == 1 and not self._unused & {*bucket}:
            return [g for (g,) in rows]
        firsts = self._firsts(bucket)
        if number not in self.flats:
            self.flats[number] = [
                zeros_like((firsts[-1],), params[bucket[0]])
                for params in self.device_params
            ]
        flats = self.flats[number]
        for flat, params, row in zip(flats, self.device_params, rows, strict=True):
            B = backend_of(flat)
            for j, (i, g) in enumerate(zip(bucket, row, strict=True)):
                span = firsts[j], firsts[j + 1]
                if g is None:  # an error here, after the others have added zeros
                    B.write_(flat, *span, zeros_like((span[1] - span[0],), flat))
                elif not B.move_grad(params[i], flat, span[0]):
                    B.write_(flat, *span, g)
        return flats

    def _unpack(self, number: int) -> None:
        """Write to every parameter its part of the sum, if it is not there already."""
        bucket = self.buckets[number]
        if number not in self.flats:
            return
        firsts = self._firsts(bucket)
        for flat, params in zip(self.flats[number], self.device_params, strict=True):
            B = backend_of(flat)
            for j, i in enumerate(bucket):
                p = params[i]
                if _grad(p) is not None and not B.move_grad(p, flat, firsts[j]):
                    part = B.read(flat, firsts[j], firsts[j + 1])
                    B.write_(B.grad(p), 0, element_count(p), part)

    def _firsts(self, bucket: Sequence[int]) -> list[int]:
        """Return where each gradient begins in the bucket's vector, and the end."""
        sizes = [element_count(self.device_params[0][i]) for i in bucket]
        return [0, *accumulate(sizes)]


def _trained(device_params: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the numbers of the parameters that are not frozen."""
    trained_by_rank, trained = {}, []
    for rank, params in enumerate(device_params):
        collect = [backend_of(p).collects_grad(p) for p in params]
        trained = [i for i, collects in enumerate(collect) if collects]
        trained_by_rank[rank] = f"{trained} of {len(params)}"
    check_same(
        trained_by_rank,
        "the same parameters to collect gradients on every device",
        "freeze the same ones in every replica",
    )
    if not trained:
        raise InvalidInput(
            "expected parameters that collect gradients, got none; call get_params or "
            "attach_grad, or freeze fewer"
        )
    return trained


def _grad(x: Tensor) -> Tensor | None:
    try:
        return backend_of(x).grad(x)
    except InvalidInput:  # no backward pass has reached it
        return None
