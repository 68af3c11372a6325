"""What a model may ask of the other devices in the middle of its forward pass.

A model that talks is a generator: it yields a call and gets back the answer. The
driver (`comm.cooperative`) advances all devices together, carries out `forward`,
and, on the way back, `backward` on the gradients of the answers.
Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

Collective = Literal[
    "identity",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "max",
    "function",
    "none",
]


@dataclass(frozen=True)
class CollectiveRequest:
    """Exchange `tensor` with all devices: `total, kept1 = yield Sum(x, keep=(y,))`.

    The recorded graph is cut here, so every other tensor that was computed since the
    last call and is used after this one must be in `keep`. Parameters and the answers
    of earlier calls need not: they are leaves. `layer` is a name for the ledger. On a
    mesh, "all devices" are those along `axis`: along `tensor` if none is named.
    """

    tensor: Any
    keep: tuple[Any, ...] = ()
    layer: str = ""
    axis: str = ""

    forward: ClassVar[Collective]
    backward: ClassVar[Collective]


class Sum(CollectiveRequest):
    """Sum over all devices, each of which goes on with *its own* work and loss."""

    forward, backward = "all-reduce", "all-reduce"


class Copy(CollectiveRequest):
    """Let every device use the same tensor in its part of a layer: the operator f.

    Each part sends back a share of the gradient. Source: Shoeybi et al. (2019).
    """

    forward, backward = "identity", "all-reduce"


class Reduce(CollectiveRequest):
    """Add up the parts of a layer, and go on with the same on every device: g.

    Every device then computes the whole loss, so its gradient is not summed again.
    """

    forward, backward = "all-reduce", "identity"


class Gather(CollectiveRequest):
    """Join the rows of all devices: f, where each holds a part of the rows."""

    forward, backward = "all-gather", "reduce-scatter"


class Scatter(CollectiveRequest):
    """Add up the parts of a layer, and keep a part of the rows: g, to go with it.

    Source: Korthikanti et al. (2022).
    """

    forward, backward = "reduce-scatter", "all-gather"


class AllToAll(CollectiveRequest):
    """Exchange blocks of rows: block t of rank s becomes block s of rank t.

    Backward the gradients go home by the same way. Source: Lepikhin et al. (2020).
    """

    forward, backward = "all-to-all", "all-to-all"


class AllReduceNoGrad(CollectiveRequest):
    """Sum over all devices, as a constant without a gradient."""

    forward, backward = "all-reduce", "none"


class Max(CollectiveRequest):
    """Take the maximum over all devices, as a constant without a gradient."""

    forward, backward = "max", "none"


@dataclass(frozen=True)
class Apply(CollectiveRequest):
    """Compute with all devices what has a way back of its own, as attention in a ring.

    `function(tensors, group)` takes one tensor for each local rank of the group. It
    gives one result each, and a function from their gradients to those of `tensors`.
    """

    function: Callable[..., Any] | None = None

    forward, backward = "function", "function"
