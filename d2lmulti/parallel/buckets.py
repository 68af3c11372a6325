"""Buckets: gradients travel in flat pieces of a chosen size, as soon as they are ready.

One all-reduce a parameter pays the start-up time of a message too often; one for all of
them starts only when the backward pass is over. Buckets of neighbouring parameters,
the last layer's first, are reduced while earlier layers are still at work.
Chapter: *allreduce*. Source: Li et al., PyTorch Distributed (2020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..backends.sizes import element_count, nbytes
from ..cluster.ledger import open_ledgers
from ..comm.collectives import start_allreduce
from ..comm.group import Group, group_for
from ..errors import InvalidInput
from ..plans.rounds import Plan

DEFAULT_BYTES = 25 * 2**20  # as PyTorch's DistributedDataParallel


def cut_into_buckets(params: Sequence[Tensor], bucket_bytes: int) -> list[list[int]]:
    """Group parameter numbers, the last first, into buckets of at most `bucket_bytes`.

    A bucket holds one dtype; a parameter that is larger has a bucket of its own.
    Raises `InvalidInput` for a size below one byte.
    """
    if isinstance(bucket_bytes, bool) or not bucket_bytes >= 1:
        raise InvalidInput(
            f"expected a bucket of at least 1 byte, got {bucket_bytes!r}; with 1, "
            "every parameter has a bucket of its own"
        )
    buckets: list[list[int]] = []
    filled = 0
    for i in reversed(range(len(params))):
        B = backend_of(params[i])
        fits = buckets and filled + nbytes(params[i]) <= bucket_bytes
        if fits and B.dtype_of(params[i]) == B.dtype_of(params[buckets[-1][-1]]):
            buckets[-1].append(i)
            filled += nbytes(params[i])
        else:
            buckets.append([i])
            filled = nbytes(params[i])
    return buckets


@contextmanager
def reduce_in_buckets(
    device_params: Sequence[Sequence[Tensor]],
    bucket_bytes: int = DEFAULT_BYTES,
    algorithm: str | Plan = "ring",
    group: Group | None = None,
) -> Iterator[list[list[int]]]:
    """Inside, backward passes sum the gradients over the devices, bucket by bucket.

    Run the backward pass inside the block and nothing after it: at its end all
    gradients are summed, in place. With the algorithm `native` of an engine the sums
    are under way while the pass goes on. Buckets are reduced in order, so that every
    process makes the same calls. Open ledgers get a mark when a gradient is ready on
    all devices. Gives the buckets: lists of parameter numbers. Raises `InvalidInput`
    when a second backward pass reaches a parameter whose bucket has been reduced.
    """
    reducer = _Reducer(device_params, bucket_bytes, algorithm, group)
    # Parameter by parameter, so that waiting from the end meets all devices in turn.
    params = [p for same in zip(*device_params, strict=True) for p in same]
    with backend_of(params[0]).on_grad_ready(params, reducer.ready):
        yield reducer.buckets
    reducer.finish()
    if reducer.late:
        raise InvalidInput(
            "expected one backward pass to finish every gradient, but parameters "
            f"{sorted(reducer.late)} got more after they had been reduced; reduce them "
            "after the last pass, without buckets"
        )


class _Reducer:
    """Counts finished gradients and reduces a bucket when its last one has come."""

    def __init__(
        self,
        device_params: Sequence[Sequence[Tensor]],
        bucket_bytes: int,
        algorithm: str | Plan,
        group: Group | None,
    ) -> None:
        self.device_params = device_params
        self.buckets = cut_into_buckets(device_params[0], bucket_bytes)
        self.algorithm = algorithm
        self.group = group_for(len(device_params), group)
        self.missing = [len(device_params)] * len(device_params[0])  # devices to come
        self.late: set[int] = set()
        self.next = 0  # the bucket to be reduced next
        self.under_way: list[Callable[[], None]] = []  # ends of what was begun
        self.lock = Lock()  # GPUs report from threads of their own

    def ready(self, index: int) -> None:
        """Take note of one gradient: parameter `index // devices` of one device."""
        i = index // len(self.device_params)
        with self.lock:
            if not self.missing[i]:
                self.late.add(i)
                return
            self.missing[i] -= 1
            if not self.missing[i]:
                for ledger in open_ledgers():
                    ledger.mark(f"gradient {i} ready")
            while self.next < len(self.buckets) and not any(
                self.missing[i] for i in self.buckets[self.next]
            ):
                self._reduce(self.buckets[self.next])
                self.next += 1

    def _reduce(self, bucket: list[int]) -> None:
        B = backend_of(self.device_params[0][0])
        grads = [[B.grad(params[i]) for i in bucket] for params in self.device_params]
        with B.pause():
            one = len(bucket) == 1
            flats = [g[0] if one else _flatten(g) for g in grads]
            end = start_allreduce(flats, self.algorithm, self.group)

        def finish() -> None:
            end()
            for flat, g in zip(flats, grads, strict=True):
                if not one:
                    _unflatten_(flat, g)

        self.under_way.append(finish)

    def finish(self) -> None:
        """Wait for what is still under way: an engine's own all-reduces."""
        for finish in self.under_way:
            finish()


def _flatten(xs: Sequence[Tensor]) -> Tensor:
    B = backend_of(xs[0])
    total = sum(element_count(x) for x in xs)
    flat = B.zeros((total,), B.dtype_of(xs[0]), B.device_of(xs[0]))
    first = 0
    for x in xs:
        last = first + element_count(x)
        B.write_(flat, first, last, x)
        first = last
    return flat


def _unflatten_(flat: Tensor, xs: Sequence[Tensor]) -> None:
    B = backend_of(flat)
    first = 0
    for x in xs:
        last = first + element_count(x)
        B.write_(x, 0, last - first, B.read(flat, first, last))
        first = last
