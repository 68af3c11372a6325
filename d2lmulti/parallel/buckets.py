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
from typing import Any

from ..backends import backend_of
from ..backends.protocol import Tensor, element_count, nbytes
from ..checks import (
    check_choice,
    check_count,
    check_flag,
    check_list,
    check_lists,
    check_same,
)
from ..comm.allreduce import Op, check_algorithm, start_allreduce
from ..comm.group import Group, group_for
from ..errors import InvalidInput
from ..events import notify_mark
from ..optimizers import zeros_like
from ..plans.rounds import Plan

DEFAULT_BYTES = 25 * 2**20  # as PyTorch's DistributedDataParallel


def cut_into_buckets(params: Sequence[Tensor], bucket_bytes: int) -> list[list[int]]:
    """Group parameter numbers, the last first, into buckets of at most `bucket_bytes`.

    A bucket holds one dtype; a parameter that is larger has a bucket of its own.
    Raises `InvalidInput` for a size below one byte.
    """
    hint = "with 1, every parameter has a bucket of its own"
    bucket_bytes = check_count("bucket_bytes", bucket_bytes, hint=hint)
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
    op: Op = "sum",
    find_unused: bool = False,
) -> Iterator[list[list[int]]]:
    """Inside, backward passes sum the gradients over the devices, bucket by bucket.

    Run the backward pass inside the block and nothing after it: at its end all
    gradients are summed (or averaged, by `op`), in place. With the algorithm `native`
    of an engine the sums are under way while the pass goes on. Buckets are reduced in
    order, so that every process makes the same calls. Open ledgers get a mark when a
    gradient is ready on all devices. Gives the buckets: lists of parameter numbers.

    The parameters may be those of a module, one list a device:

        with reduce_in_buckets([list(net.parameters())], op="mean"):
            loss(net(X), y).backward()

    Frozen ones (requires_grad=False, stop_gradient=True) are left out. One that this
    pass did not use, and that has no gradient, counts as zeros; without `find_unused`
    it is then refused. With it, as in PyTorch's DistributedDataParallel, ranks may use
    different parameters, and what no rank used stays without a gradient. That costs one
    number a parameter, and its bucket waits for the end of the pass.

    Raises `InvalidInput` when a second backward pass reaches a parameter whose bucket
    has been reduced, and for devices that differ in what is frozen.
    """
    check_list("device_params", device_params, "lists of parameters, one a device")
    check_lists("device_params", device_params, len(device_params))
    check_algorithm(algorithm)
    check_choice("op", op, ("sum", "mean", "max"))
    check_flag("find_unused", find_unused)
    reducer = _Reducer(device_params, bucket_bytes, algorithm, group, op, find_unused)
    with backend_of(reducer.params[0]).on_grad_ready(reducer.params, reducer.ready):
        yield reducer.buckets
    reducer.finish()


class _Reducer:
    """Counts finished gradients and reduces a bucket when its last one has come."""

    def __init__(
        self,
        device_params: Sequence[Sequence[Tensor]],
        bucket_bytes: int,
        algorithm: str | Plan,
        group: Group | None,
        op: Op,
        find_unused: bool,
    ) -> None:
        self.device_params = device_params
        self.group = group_for(len(device_params), group)
        self.trained = _trained(device_params)
        mine = [device_params[0][i] for i in self.trained]
        cut = cut_into_buckets(mine, bucket_bytes)
        self.buckets = [[self.trained[j] for j in bucket] for bucket in cut]
        # Parameter by parameter, so that waiting from the end meets all devices.
        self.params = [params[i] for i in self.trained for params in device_params]
        self.algorithm, self.op, self.find_unused = algorithm, op, find_unused
        self.missing = dict.fromkeys(self.trained, len(device_params))  # devices
        self.late: set[int] = set()
        self.unused: set[int] = set()
        self.next = 0  # the bucket to be reduced next
        self.under_way: list[Callable[[], None]] = []  # ends of what was begun
        self.lock = Lock()  # GPUs report from threads of their own

    def ready(self, index: int) -> None:
        """Take note of one gradient: number `index // devices` of one device."""
        i = self.trained[index // len(self.device_params)]
        with self.lock:
            if not self.missing[i]:
                self.late.add(i)
                return
            self.missing[i] -= 1
            if not self.missing[i]:
                notify_mark(f"gradient {i} ready")
            while self.next < len(self.buckets) and not any(
                self.missing[i] for i in self.buckets[self.next]
            ):
                self._reduce(self.buckets[self.next])
                self.next += 1

    def _reduce(self, bucket: list[int]) -> None:
        B = backend_of(self.params[0])
        mine = [[params[i] for i in bucket] for params in self.device_params]
        grads = [[_grad(p) for p in params] for params in mine]
        for row in grads:
            self.unused |= {i for i, g in zip(bucket, row, strict=True) if g is None}
        alone = len(bucket) == 1 and not self.find_unused
        with B.pause():
            full = [
                [
                    zeros_like(p.shape, p) if g is None else g
                    for p, g in zip(params, row, strict=True)
                ]
                for params, row in zip(mine, grads, strict=True)
            ]
            if self.find_unused:  # behind the gradients: on how many ranks each is used
                for params, row, flags in zip(mine, grads, full, strict=True):
                    used = [int(g is not None) for g in row]
                    flags += [zeros_like((1,), params[0]) + one for one in used]
            flats = [row[0] if alone else _flatten(row) for row in full]
            work = start_allreduce(flats, self.algorithm, self.group, self.op)

        def finish() -> None:
            work.wait()
            if not alone:
                for params, row, flat in zip(mine, grads, flats, strict=True):
                    self._unflatten_(flat, params, row)

        self.under_way.append(finish)

    def _unflatten_(
        self, flat: Tensor, params: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> None:
        B, first = backend_of(flat), 0
        total = sum(element_count(p) for p in params)
        flags = B.read(flat, total, element_count(flat))
        used: Any = B.numpy(flags) if self.find_unused else ()
        for j, (p, g) in enumerate(zip(params, grads, strict=True)):
            last = first + element_count(p)
            if g is None and self.find_unused and used[j] > 0:
                B.attach_grad(p)
                g = B.grad(p)
            if g is not None:
                B.write_(g, 0, last - first, B.read(flat, first, last))
            first = last

    def finish(self) -> None:
        """Wait for what is still under way: an engine's own all-reduces."""
        for finish in self.under_way:
            finish()
        if self.late:
            raise InvalidInput(
                "expected one backward pass to finish every gradient, but parameters "
                f"{sorted(self.late)} got more after they had been reduced; reduce "
                "them after the last pass, without buckets"
            )
        if self.unused and not self.find_unused:
            raise InvalidInput(
                "expected the backward pass to give every parameter a gradient, got "
                f"none for parameters {sorted(self.unused)}, which counted as zeros; "
                "use them, freeze them, leave them out, or pass find_unused=True"
            )


def _trained(device_params: Sequence[Sequence[Tensor]]) -> list[int]:
    """Number the parameters that are not frozen, the same on every device."""
    words, trained = {}, []
    for rank, params in enumerate(device_params):
        collect = [backend_of(p).collects_grad(p) for p in params]
        trained = [i for i, does in enumerate(collect) if does]
        words[rank] = f"{trained} of {len(params)}"
    check_same(
        words,
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


def _flatten(xs: Sequence[Tensor]) -> Tensor:
    B, first = backend_of(xs[0]), 0
    if B.name != "mxnet":  # its concat takes six times as long as writing the parts
        return B.concat([B.read(x, 0, element_count(x)) for x in xs])
    flat = zeros_like((sum(element_count(x) for x in xs),), xs[0])
    for x in xs:
        last = first + element_count(x)
        B.write_(flat, first, last, x)
        first = last
    return flat
