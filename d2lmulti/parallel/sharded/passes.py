"""Forward and back through the layers of a network whose parts are shared out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ...backends.protocol import AnyDevice, Backend, Tensor, element_count
from ...comm.group import Group, Work
from ...errors import framework_errors
from ...events import working
from ...models.model import losses_of, run_layers
from ...optimizers.sgd import zeros_like
from .holding import ShardedParams, attach_grads
from .moving import start_gather, start_scatter


class _Graph(NamedTuple):
    """What was recorded of one layer, on each device."""

    leaves: list[list[Tensor]]  # the parameters, on each device
    ins: list[Tensor]
    outs: list[Tensor]


class Pass:
    """Forward and back, one graph a layer, with no more whole than the stage allows.

    What is whole lives in variables of functions that handle one layer, and ends there.
    """

    def __init__(
        self, B: Backend, sharded: ShardedParams, devices: Sequence[AnyDevice],
        group: Group, prefetch: bool, loss_scale: float, first: bool, final: bool,
    ) -> None:  # fmt: skip
        self.B, self.sharded, self.devices, self.group = B, sharded, devices, group
        self.prefetch, self.loss_scale = prefetch, loss_scale
        self.first, self.final = first, final  # of the passes that are added up
        last = len(sharded.units) - 1
        self.uses = iter([*range(last), *range(last, -1, -1)])  # of whole weights
        self.coming: Work | None = None  # those of the next use
        self.leaving: dict[int, Work] = {}  # gradients of layers, on their way

    def run(self, Xs: list[Tensor], ys: list[Tensor], y: Tensor) -> list[Tensor]:
        """Leave the gradients where the stage keeps them; return the losses.

        y: the targets that ys were copied from.
        """
        B, last = self.B, len(self.sharded.units) - 1
        self.y = y
        kept, Hs = [], Xs  # of each layer its inputs or, with ZeRO 1, its graph
        for l in range(last):
            mine, Hs = self.go_forward(l, Hs)
            kept.append(mine)
        if self.sharded.low:
            graph = self.record(last, Hs)
            losses, dys = self.lose(graph.outs, ys)
        else:
            graph, dys = self.record(last, Hs, ys), None
            losses = [B.detach(loss) for loss in graph.outs]
        dys = self.go_back(last, graph, dys)
        del graph
        for l in reversed(range(last)):
            dys = self.go_back(l, kept.pop(), dys)
        if self.sharded.zero > 1:
            self.keep_parts()
        elif self.final and not self.prefetch:
            for l in reversed(range(last + 1)):
                self.send(l, [B.grad(mine[l]) for mine in self.sharded])
        return losses

    def lose(
        self, outs: Sequence[Tensor], ys: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Give the losses, in float32, and the scaled gradients of what made them."""
        B, low = self.B, self.sharded.low or "float32"
        heads = [B.cast(out, "float32") for out in outs]
        attach_grads([heads])
        with B.record():
            losses = [
                losses_of(B, x, y, self.y).sum() for x, y in zip(heads, ys, strict=True)
            ]
        B.backward(losses)
        dys = [B.cast(B.grad(x) * self.loss_scale, low) for x in heads]
        return [B.detach(loss) for loss in losses], dys

    def go_forward(self, l: int, Hs: list[Tensor]) -> tuple[Any, list[Tensor]]:
        """Compute a layer; give what is kept of it for the way back, and its output."""
        if self.sharded.zero == 1:
            graph = self.record(l, Hs)
            return graph, [self.B.detach(out) for out in graph.outs]
        weights = self.weights(l)
        with self.B.pause(), self.spans("forward", l):
            params = [*map(self.sharded.units[l].unflatten, weights)]
            return Hs, self.forward(l, params, Hs)

    def go_back(
        self, l: int, kept: Any, dys: list[Tensor] | None = None
    ) -> list[Tensor] | None:
        """Turn the gradients of a layer's outputs into those of its inputs."""
        graph = kept if isinstance(kept, _Graph) else self.record(l, kept)
        with self.spans("backward", l):
            self.B.backward(graph.outs, dys)
        if self.sharded.zero > 1 and self.prefetch:
            self.keep_parts()  # those of the layer behind this one
        wholes = self.flatten(l, graph)
        if self.sharded.zero > 1 or self.prefetch and self.final:
            self.send(l, wholes)
        if self.sharded.zero > 1 and not self.prefetch:
            self.keep_parts()
        return [self.B.grad(H) for H in graph.ins] if l else None

    def record(
        self, l: int, Hs: list[Tensor], ys: list[Tensor] | None = None
    ) -> _Graph:
        """Compute a layer, the last one and its loss, in a graph of its own.

        The leaves are others than what is held: their gradients end with the graph.
        """
        B, unit = self.B, self.sharded.units[l]
        with B.pause():
            leaves = [[*map(B.detach, unit.unflatten(w))] for w in self.weights(l)]
        attach_grads(leaves)
        ins = [B.detach(H) for H in Hs]
        if l:  # nobody asks for the gradient of the examples
            for H in ins:
                B.attach_grad(H)
        with B.record(), self.spans("forward", l):
            outs = self.forward(l, leaves, ins)
            if ys is not None:
                pairs = zip(outs, ys, strict=True)
                outs = [losses_of(B, out, y, self.y).sum() for out, y in pairs]
        return _Graph(leaves, ins, outs)

    def weights(self, l: int) -> list[Tensor]:
        """Give each device a layer's whole weights."""
        if self.sharded.zero < 3:
            return [flats[l] for flats in self.sharded]
        if self.coming is None:
            with self.spans("all-gather", next(self.uses)):
                wholes = self.start_gather(l).wait()
        else:
            with self.spans("wait for", l):
                wholes = self.coming.wait()
        self.coming = None
        if self.prefetch and (after := next(self.uses, None)) is not None:
            with self.spans("all-gather", after):
                self.coming = self.start_gather(after)
        return wholes

    def start_gather(self, l: int) -> Work:
        """Begin to gather a layer's weights."""
        mine = [flats[l] for flats in self.sharded]
        return start_gather(mine, self.sharded.units[l].size, self.group)

    def forward(
        self, l: int, params: Sequence[Sequence[Tensor]], Hs: Sequence[Tensor]
    ) -> list[Tensor]:
        """Compute a layer on each device."""
        layers, outs = self.sharded.units[l].layers, []
        for mine, H in zip(params, Hs, strict=True):
            with framework_errors(self.sharded.model.name, H):
                outs.append(run_layers(self.B, layers, mine, H))
        return outs

    def flatten(self, l: int, graph: _Graph) -> list[Tensor]:
        """Give each device's gradients of a layer as one flat vector."""
        B, kept = self.B, self.sharded.zero == 1  # then parts of a batch are added up
        if kept:
            wholes = [B.grad(mine[l]) for mine in self.sharded]
        else:  # concat takes seven times as long with MXNet
            size = self.sharded.units[l].size
            wholes = [zeros_like((size,), mine[0]) for mine in graph.leaves]
        for whole, mine in zip(wholes, graph.leaves, strict=True):
            first = 0
            for p in mine:
                last = first + element_count(p)
                B.write_(whole, first, last, B.grad(p), kept and not self.first)
                first = last
        return wholes

    def send(self, l: int, wholes: Sequence[Tensor]) -> None:
        """Begin to sum the gradients of a layer."""
        with self.spans("reduce-scatter", l):
            self.leaving[l] = start_scatter(wholes, self.group)

    def keep_parts(self) -> None:
        """Wait for the sums that are under way; keep each device's part."""
        for l in [*self.leaving]:
            for mine, part in zip(self.sharded.grads, self.grads(l), strict=True):
                size, add = element_count(part), not self.first
                self.B.write_(mine[l], 0, size, part, add)

    def grads(self, l: int) -> list[Tensor]:
        """Give each device's part of the summed gradients of a layer."""
        if l in self.leaving:
            return self.leaving.pop(l).wait()
        return [mine[l] for mine in self.sharded.grads]

    def spans(self, what: str, l: int) -> AbstractContextManager[Any]:
        """Measure work on a layer on every device's track."""
        name = f"{what} {self.sharded.units[l].name}"
        return working(self.devices, name, self.B.synchronize)
