"""A training step on shards: data parallelism, by reduce-scatter and all-gather."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Backend, Tensor, element_count
from ...checks import check_count, check_list, check_positive
from ...comm.checks import check_batch
from ...comm.group import Group, group_for, local_group
from ...comm.split import split_batch
from ...events import working
from ...models.checks import explained
from ...models.model import losses_of, run_layers
from ...optimizers import Optimizer, check_optimizer, check_states
from .holding import ShardedParams, attach_grads, check_sharded, gather, scatter


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
) -> list[Tensor]:
    """Take one step on a batch, split over the devices as in `train_batch`.

    X (n, ...), y (n, ...): the whole batch, or, in a group of processes and with `n`,
    the number of targets of the whole, this process's part of it. sharded: from
    `shard_params`, updated in place; `states`: the optimizer's, of `sharded.parts()`.

    ZeRO 1 sums the gradients when all are there, ZeRO 2 and 3 layer by layer on the way
    back, each by a reduce-scatter; ZeRO 1 and 2 end with an all-gather of the updated
    parts, ZeRO 3 gathers a layer before each use. So N numbers, N_last of them in the
    last layer, on k devices cost 2 (k - 1) N, with ZeRO 3 (k - 1) (3 N - N_last): the
    last layer goes back at once. With ZeRO 2 and 3 no more than one layer's gradients
    (with ZeRO 3, parameters) are whole at a time; of the forward pass only the inputs
    of the layers are kept, and each layer is computed again on the way back.

    Returns each device's summed loss, not yet waited for. Raises `InvalidInput` for
    what `shard_params` has not made, for lists of different lengths, and what
    `split_batch` refuses.
    """
    B = check_batch(X, y)
    check_list("devices", devices, "devices", cure="use devices(1)")
    check_sharded(sharded, len(devices))
    states = check_states(states, len(devices))
    optimizer = check_optimizer(optimizer)
    check_positive("lr", lr, "try 0.05")
    if n is not None:
        n = check_count("n", n, cure="n is the number of targets in the whole batch")
    group = group_for(len(devices), group)
    with working(devices, "load", B.synchronize):
        cut = group if n is None else local_group(len(devices))
        X_shards, y_shards = split_batch(X, y, devices, cut)
    losses = _Pass(B, sharded, devices, group).run(X_shards, y_shards)

    parts = sharded.parts()
    if sharded.zero < 3:
        attach_grads(parts)
        for l, same in enumerate(zip(*sharded.grads, strict=True)):
            grads = scatter(list(same), group) if sharded.zero == 1 else list(same)
            for mine, grad in zip(parts, grads, strict=True):
                B.write_(B.grad(mine[l]), 0, element_count(grad), grad)
    for mine, state, device in zip(parts, states, devices, strict=True):
        with working([device], "update", B.synchronize):
            optimizer.step_(mine, state, lr, n=element_count(y) if n is None else n)
    if sharded.zero < 3:
        for l in range(len(sharded.units)):
            _share_(sharded, l, [mine[l] for mine in parts], group)
    return losses


def _share_(sharded: ShardedParams, l: int, parts: list[Tensor], group: Group) -> None:
    """Let every device have the others' updated parts of a layer."""
    for mine, whole in zip(sharded, gather(parts, group), strict=True):
        backend_of(whole).write_(mine[l], 0, sharded.units[l].size, whole)


class _Graph(NamedTuple):
    """What was recorded of one layer, on each device."""

    leaves: list[Tensor]  # the whole weights
    ins: list[Tensor]
    outs: list[Tensor]


class _Pass:
    """Forward and back, one graph a layer, with no more whole than the stage allows.

    What is whole lives in variables of functions that handle one layer, and ends there.
    """

    def __init__(
        self, B: Backend, sharded: ShardedParams, devices: Sequence[AnyDevice],
        group: Group,
    ) -> None:  # fmt: skip
        self.B, self.sharded, self.devices, self.group = B, sharded, devices, group

    def run(self, Xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
        """Leave the gradients where the stage keeps them; return the losses."""
        B, last = self.B, len(self.sharded.units) - 1
        if self.sharded.zero == 1:
            for mine in self.sharded:
                for p in mine:
                    B.clear_grad_(p)
        kept, Hs = [], Xs  # of each layer its inputs or, with ZeRO 1, its graph
        for l in range(last):
            mine, Hs = self.go_forward(l, Hs)
            kept.append(mine)
        graph = self.record(last, Hs, ys)
        losses = [B.detach(loss) for loss in graph.outs]
        dys = self.go_back(last, graph)
        del graph
        for l in reversed(range(last)):
            dys = self.go_back(l, kept.pop(), dys)
        return losses

    def go_forward(self, l: int, Hs: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """Compute a layer; give what is kept of it for the way back, and its output."""
        if self.sharded.zero == 1:
            graph = self.record(l, Hs)
            return graph, [self.B.detach(out) for out in graph.outs]
        weights = self.weights(l)
        with self.B.pause(), self.spans("forward", l):
            return Hs, self.forward(l, weights, Hs)

    def go_back(
        self, l: int, kept: Any, dys: list[Tensor] | None = None
    ) -> list[Tensor] | None:
        """Turn the gradients of a layer's outputs into those of its inputs."""
        graph = kept if isinstance(kept, _Graph) else self.record(l, kept)
        with self.spans("backward", l):
            self.B.backward(graph.outs, dys)
        if self.sharded.zero > 1:
            self.keep_parts(l, [self.B.grad(w) for w in graph.leaves])
        return [self.B.grad(H) for H in graph.ins] if l else None

    def record(
        self, l: int, Hs: list[Tensor], ys: list[Tensor] | None = None
    ) -> _Graph:
        """Compute a layer, the last one and its loss, in a graph of its own.

        From ZeRO 2 on the leaves are others than what is held: their gradients, whole,
        end with the graph.
        """
        B, leaves = self.B, self.weights(l)
        ins = [B.detach(H) for H in Hs]
        if self.sharded.zero > 1:
            leaves = [B.detach(w) for w in leaves]
            for w in leaves:
                B.attach_grad(w)
        if l:  # nobody asks for the gradient of the examples
            for H in ins:
                B.attach_grad(H)
        with B.record(), self.spans("forward", l):
            outs = self.forward(l, leaves, ins)
            if ys is not None:
                pairs = zip(outs, ys, strict=True)
                outs = [losses_of(B, out, y).sum() for out, y in pairs]
        return _Graph(leaves, ins, outs)

    def weights(self, l: int) -> list[Tensor]:
        """Give each device a layer's whole weights."""
        mine = [flats[l] for flats in self.sharded]
        if self.sharded.zero < 3:
            return mine
        with self.spans("all-gather", l):
            return gather(mine, self.group)

    def forward(
        self, l: int, weights: Sequence[Tensor], Hs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Compute a layer on each device."""
        unit, B, outs = self.sharded.units[l], self.B, []
        for w, H in zip(weights, Hs, strict=True):
            with explained(self.sharded.model.name, H):
                outs.append(run_layers(B, unit.layers, unit.unflatten(w), H))
        return outs

    def keep_parts(self, l: int, grads: list[Tensor]) -> None:
        """Sum the devices' gradients of a layer, and keep each device's part."""
        B = self.B
        with self.spans("reduce-scatter", l):
            for mine, part in zip(
                self.sharded.grads, scatter(grads, self.group), strict=True
            ):
                B.write_(mine[l], 0, element_count(part), part)

    def spans(self, what: str, l: int) -> AbstractContextManager[Any]:
        """Measure work on a layer on every device's track."""
        name = f"{what} {self.sharded.units[l].name}"
        return working(self.devices, name, self.B.synchronize)
