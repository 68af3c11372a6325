"""Sharded data parallelism: ZeRO 1, 2, and 3, the last also known as FSDP.

As in data parallelism, each device trains on its shard of the batch; in addition it
owns one shard of every layer. ZeRO 1 stores the optimizer's state of that shard only,
ZeRO 2 also the gradients, ZeRO 3 also the parameters. Chapter: *sharding*. Source:
Rajbhandari et al. (2020); Zhao et al., PyTorch FSDP (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Tensor
from ..checks import check_lists, check_positive
from ..comm.group import Group
from ..models.networks import framework_errors, losses_of, run_layers
from ..optimizers import Optimizer, zeros_like
from .flat_parameters import (
    ShardedParams,
    attach_grads,
    gather_flat,
    gather_flat_,
    scatter_flat,
)
from .step import Step, by_device


class _Graph(NamedTuple):
    """The recorded graph of one layer, per device."""

    leaves: list[list[Tensor]]  # the parameters
    ins: list[Tensor]
    outs: list[Tensor]


class ForwardBackward:
    """The passes of one step, with one recorded graph per layer.

    Unsharded tensors are local to the methods that process one layer, so at most one
    layer is unsharded at a time.
    """

    def __init__(self, step: Step, sharded: ShardedParams, loss_scale: float) -> None:
        self.step, self.B, self.group = step, step.B, step.group
        self.sharded, self.loss_scale = sharded, loss_scale
        self.add = False  # whether gradients are added to those of an earlier pass

    def run(self, Xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        """Write the gradients to `sharded.grads`; return the losses.

        With ZeRO 1 the gradients are not yet summed over the devices: call
        `sum_gradients` after the last pass.
        """
        stored: list[Any] = []  # per layer its inputs or, with ZeRO 1, its graph
        Hs, last = Xs, len(self.sharded.flat_params) - 1
        for l in range(last):
            if self.sharded.zero == 1:
                graph = self.record(l, Hs)
                stored.append(graph)
                Hs = [self.B.detach(out) for out in graph.outs]
            else:
                stored.append(Hs)
                Hs = self.forward_only(l, Hs)
        graph = self.record(last, Hs)
        losses, grads = self.loss_gradients(graph.outs, ys)
        grads = self.backward(last, graph, grads)
        for l in reversed(range(last)):
            del graph
            saved = stored.pop()
            graph = saved if isinstance(saved, _Graph) else self.record(l, saved)
            grads = self.backward(l, graph, grads)
        self.add = True
        return losses

    def sum_gradients(self) -> None:
        """Reduce-scatter the gradients over the devices, with ZeRO 1."""
        for l in range(len(self.sharded.flat_params)):
            self.reduce_scatter(l, [grads[l] for grads in self.sharded.grads])

    def weights(self, l: int) -> list[Tensor]:
        """Return a layer's full weights, as a flat vector per device."""
        vectors = [flats[l] for flats in self.sharded]
        if self.sharded.zero < 3:
            return vectors
        with self.span("all-gather", l):
            return gather_flat(vectors, self.sharded.flat_params[l].size, self.group)

    def forward_only(self, l: int, Hs: list[Tensor]) -> list[Tensor]:
        """Compute a layer without a graph; the backward pass recomputes it."""
        weights = self.weights(l)
        with self.B.pause(), self.span("forward", l):
            params = [*map(self.sharded.flat_params[l].unflatten, weights)]
            return self.compute(l, params, Hs)

    def record(self, l: int, Hs: list[Tensor]) -> _Graph:
        """Compute a layer in a graph of its own.

        Its leaves are not the stored tensors, so their gradients are freed with the
        graph.
        """
        B, layer = self.B, self.sharded.flat_params[l]
        with B.pause():
            leaves = [[*map(B.detach, layer.unflatten(w))] for w in self.weights(l)]
        attach_grads(leaves)
        ins = [B.detach(H) for H in Hs]
        if l:  # the examples need no gradient
            attach_grads([ins])
        with B.record(), self.span("forward", l):
            return _Graph(leaves, ins, self.compute(l, leaves, ins))

    def compute(
        self, l: int, params: Sequence[Sequence[Tensor]], Hs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Apply a layer on each device."""
        layers, outs = self.sharded.flat_params[l].layers, []
        for layer_params, H in zip(params, Hs, strict=True):
            with framework_errors(self.sharded.model.name, H):
                outs.append(run_layers(self.B, layers, layer_params, H))
        return outs

    def loss_gradients(
        self, outs: Sequence[Tensor], ys: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the losses, and their gradients with respect to the last outputs.

        In mixed precision the loss is computed in float32, and its gradient is scaled.
        """
        B, dtype = self.B, self.sharded.compute_dtype
        logits = [B.cast(out, "float32") if dtype else B.detach(out) for out in outs]
        attach_grads([logits])
        with B.record():
            losses = [
                losses_of(B, x, y, self.step.y).sum()
                for x, y in zip(logits, ys, strict=True)
            ]
        B.backward(losses)
        grads = [B.grad(x) for x in logits]
        if dtype:
            grads = [B.cast(grad * self.loss_scale, dtype) for grad in grads]
        return [B.detach(loss) for loss in losses], grads

    def backward(self, l: int, graph: _Graph, grads: list[Tensor]) -> list[Tensor]:
        """Return the gradients of a layer's inputs, from those of its outputs."""
        with self.span("backward", l):
            self.B.backward(graph.outs, grads)
        flats = self.flatten_gradients(l, graph)
        if self.sharded.zero > 1:
            self.reduce_scatter(l, flats)
        return [self.B.grad(H) for H in graph.ins] if l else []

    def flatten_gradients(self, l: int, graph: _Graph) -> list[Tensor]:
        """Return each device's gradients of a layer; ZeRO 1 stores them."""
        B, add = self.B, self.add and self.sharded.zero == 1
        if self.sharded.zero == 1:
            flats = [grads[l] for grads in self.sharded.grads]
        else:  # with MXNet, to concatenate takes seven times as long
            size = (self.sharded.flat_params[l].size,)
            flats = [zeros_like(size, leaves[0]) for leaves in graph.leaves]
        for flat, leaves in zip(flats, graph.leaves, strict=True):
            first = 0
            for p in leaves:
                last = first + element_count(p)
                B.write_(flat, first, last, B.grad(p), add)
                first = last
        return flats

    def reduce_scatter(self, l: int, flats: Sequence[Tensor]) -> None:
        """Sum a layer's gradients over the devices; store each device's shard."""
        with self.span("reduce-scatter", l):
            shards = scatter_flat(flats, self.group)
        rows = zip(self.sharded.grads, self.sharded.bounds, shards, strict=True)
        for grads, bounds, shard in rows:
            if self.sharded.zero == 1:
                self.B.write_(grads[l], *bounds[l], shard)
            else:
                self.B.write_(grads[l], 0, element_count(shard), shard, self.add)

    def span(self, what: str, l: int) -> AbstractContextManager[Any]:
        """Measure work on a layer on every device's track."""
        return self.step.span(f"{what} {self.sharded.flat_params[l].name}")


def train_shards(
    X: Tensor,
    y: Tensor,
    sharded: ShardedParams,
    devices: Sequence[AnyDevice],
    lr: float,
    *,
    optimizer: Optimizer | None = None,
    states: Sequence[Sequence[Tensor]] | None = None,
    group: Group | None = None,
    n: int | None = None,
    loss_scale: float = 1.0,
    accumulate: int = 1,
) -> list[Tensor]:
    """Take one step on a batch, split over the devices as in `train_batch`.

    X (n, ...), y (n, ...): the whole batch, or, in a group of processes and with `n`,
    the number of targets of the whole batch, this process's part of it. sharded: from
    `shard_params`, updated in place; `states`: the optimizer's, of `sharded.parts()`.

    A reduce-scatter per layer sums the gradients. ZeRO 1 and 2 end with an all-gather
    of the updated shards; ZeRO 3 gathers a layer before each use. So k devices together
    send 2 (k - 1) N elements for a model of N. With ZeRO 3, they send (k - 1)
    (3 N - N_last), because the last layer, of N_last, is gathered once. ZeRO 2 and 3
    unshard one layer's gradients at a time, ZeRO 3 also its parameters. Both store only
    the inputs of the layers and recompute each layer in the backward pass.

    In mixed precision (see `shard_params`) the loss and the update are in float32. The
    loss's gradient is multiplied by `loss_scale` in the backward pass, so that fp16,
    whose smallest positive value is 6e-8, can represent small gradients. A power of two
    rounds nothing.

    With `accumulate` each device processes its shard of the batch in that many parts,
    one after another, before one update. ZeRO 1 adds up gradients on each device and
    moves no more bytes; ZeRO 2 and 3 reduce-scatter those of each part, and ZeRO 3
    gathers the weights for each part.

    Returns each device's summed loss of every part, possibly still being computed.
    Raises `InvalidInput` for shards of other devices, for lists of different lengths,
    for fewer examples per device than parts, and as `split_batch` does.
    """
    step = Step(
        X,
        y,
        devices,
        lr,
        optimizer=optimizer,
        states=states,
        group=group,
        n=n,
        vocabulary=sharded.model.vocabulary,
    )
    hint = "pass the devices that shard_params was given"
    check_lists("sharded", sharded, len(devices), hint=hint)
    check_positive("loss_scale", loss_scale, "try 1024")
    losses: list[Tensor] = []
    passes = ForwardBackward(step, sharded, loss_scale)
    for Xs, ys in step.split(accumulate):
        if sharded.compute_dtype and step.B.dtype_of(X) == "float32":
            Xs = [step.B.cast(X_part, sharded.compute_dtype) for X_part in Xs]
        losses += passes.run(Xs, ys)
    if sharded.zero == 1:
        passes.sum_gradients()

    shards = sharded.to_update()
    if sharded.zero < 3 or sharded.compute_dtype:
        attach_grads(shards)
        _set_grads(sharded, shards, loss_scale)
    step.update_(shards)
    _store(sharded, shards, step.group)
    return by_device(losses, len(devices))


def _set_grads(
    sharded: ShardedParams, shards: Sequence[Sequence[Tensor]], loss_scale: float
) -> None:
    """Set the gradients of the updated tensors, in float32 for master weights."""
    B = backend_of(shards[0][0])
    for own, grads, bounds in zip(shards, sharded.grads, sharded.bounds, strict=True):
        for p, grad, limits in zip(own, grads, bounds, strict=True):
            if sharded.zero == 1:
                grad = B.read(grad, *limits)
            if sharded.compute_dtype:
                grad = B.cast(grad, "float32") / loss_scale
            B.write_(B.grad(p), 0, element_count(p), grad)


def _store(
    sharded: ShardedParams, shards: Sequence[Sequence[Tensor]], group: Group
) -> None:
    """Write the updated shards back; all-gather the vectors that are not sharded."""
    B, dtype = backend_of(shards[0][0]), sharded.compute_dtype
    for l in range(len(sharded.flat_params)):
        flats = [vectors[l] for vectors in sharded]
        for i, flat in enumerate(flats):
            shard = shards[i][l]
            if dtype:
                B.write_(sharded.master_weights[i][l], 0, element_count(shard), shard)
                shard = B.cast(shard, dtype)
            if sharded.zero < 3:
                B.write_(flat, *sharded.bounds[i][l], shard)
            elif dtype:  # otherwise it was updated in place
                B.write_(flat, 0, element_count(shard), shard)
        if sharded.zero < 3:
            gather_flat_(flats, group)
