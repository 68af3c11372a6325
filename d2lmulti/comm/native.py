"""An engine's own all-reduce: one algorithm among ours, and often the fastest.

What it sends is its secret, so the ledger enters the ring's bytes, the least possible.
It can be under way while the backward pass goes on. Chapter: *built_in*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..backends.sizes import element_count, itemsize
from ..cluster.ledger import open_ledgers
from ..errors import InvalidInput
from ..plans.allreduce import ALLREDUCE
from .group import Group
from .transports import Asynchronous, Combine


def start_native(
    data: Sequence[Tensor], group: Group, op: str = "sum"
) -> Callable[[], None]:
    """Begin the engine's all-reduce; the function that comes back waits for its end.

    A mean is summed up only. Raises `InvalidInput` where the engine has none.
    """
    transport, x = group.transport, data[0]
    if "allreduce" not in transport.native:
        raise InvalidInput(
            f"expected an engine with an all-reduce of its own, got {transport.name}, "
            f"which has none; use one of {', '.join(ALLREDUCE)} or auto"
        )
    combine: Combine = "max" if op == "max" else "sum"
    if group.spread:
        form = f"{tuple(x.shape)} {backend_of(x).dtype_of(x)}"
        transport.begin(f"native {op} all-reduce of {form}")
    for ledger in open_ledgers():
        ledger.count_plan(ALLREDUCE["ring"](group.size, element_count(x)), itemsize(x))
    if isinstance(transport, Asynchronous):
        return transport.start_native("allreduce", data, combine)
    transport.run_native("allreduce", data, combine)
    return _nothing


def _nothing() -> None:
    pass
