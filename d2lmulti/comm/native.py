"""An engine's own all-reduce: one algorithm among ours, and often the fastest.

What it sends is its secret, so the ledger enters the ring's bytes, the least possible.
It can be under way while the backward pass goes on. Chapter: *built_in*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..backends import backend_of
from ..backends.protocol import Tensor
from ..backends.sizes import element_count, itemsize
from ..cluster.ledger import open_ledgers
from ..errors import InvalidInput
from ..plans.allreduce import ALLREDUCE
from ..plans.rounds import Round
from .engines import Asynchronous, Combine, check_native, check_reducible, nothing
from .group import Group


def start_native(
    data: Sequence[Tensor], group: Group, op: str = "sum"
) -> Callable[[], None]:
    """Begin the engine's all-reduce; the function that comes back waits for its end.

    A mean is summed up only. Raises `InvalidInput` where the engine has none.
    """
    engine, x = group.engine, data[0]
    if "allreduce" not in engine.native:
        raise InvalidInput(
            f"expected an engine with an all-reduce of its own, got {engine.name}, "
            f"which has none; use one of {', '.join(ALLREDUCE)} or auto"
        )
    dtype = backend_of(x).dtype_of(x)
    check_reducible(engine.name, engine.reducible, dtype)
    combine: Combine = "max" if op == "max" else "sum"
    if group.is_distributed:
        form = f"{tuple(x.shape)} {dtype}"
        engine.begin(f"native {op} all-reduce of {form}")
    for ledger in open_ledgers():
        ledger.count_plan(ALLREDUCE["ring"](group.size, element_count(x)), itemsize(x))
    if not element_count(x):  # some engines fail on an empty tensor
        return nothing
    if isinstance(engine, Asynchronous):
        return engine.start_native("allreduce", data, combine)
    engine.run_native("allreduce", data, combine)
    return nothing


def run_native(
    what: str, data: Sequence[Tensor], rounds: Iterable[Round], group: Group,
    op: str = "sum", root: int = 0,
) -> list[Tensor]:  # fmt: skip
    """Run a collective on an engine without messages; enter the plan it stands for.

    Returns what the engine returns, nothing for a broadcast. A mean is summed up only.
    Raises `InvalidInput` where the engine has none of that name.
    """
    engine, x = group.engine, data[0]
    check_native(engine.name, engine.native, what)
    dtype = backend_of(x).dtype_of(x)
    if what in ("allreduce", "reduce_scatter"):
        check_reducible(engine.name, engine.reducible, dtype)
    form = f"{tuple(x.shape[1:])} {dtype}"  # rows may differ
    engine.begin(f"{op} {what} from or to rank {root} of {form}")
    for ledger in open_ledgers():
        ledger.count_plan(rounds, itemsize(x))
    return engine.run_native(what, data, "max" if op == "max" else "sum", root) or []


def usual_algorithm(group: Group) -> str:
    """Name the all-reduce of those who ask for none: the star, where it can run."""
    return "star" if group.engine.point_to_point else "native"
