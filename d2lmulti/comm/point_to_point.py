"""One tensor from one rank to another: a round with a single transfer."""

from __future__ import annotations

from ..backends import backend_of
from ..backends.protocol import AnyDevice, Tensor
from ..backends.sizes import element_count
from ..errors import InvalidInput
from ..plans.rounds import make_round
from .collectives import run_plan
from .group import Group


def copy_between(
    x: Tensor, source: int, target: int, device: AnyDevice, group: Group
) -> Tensor:
    """Copy `x` of rank `source` to rank `target`, which lives on `device`; counted.

    Gives a new tensor there, outside any graph. Raises `InvalidInput` for ranks that
    are not two different ones of this process.
    """
    if source == target or not {source, target} <= set(group.local_ranks):
        raise InvalidInput(
            f"expected two different ranks among {group.local_ranks}, got {source} "
            f"and {target}; a copy goes from one device of this process to another"
        )
    B = backend_of(x)
    arrived = B.zeros(tuple(x.shape), B.dtype_of(x), device)
    data = [x] * group.size  # only these two places are read and written
    data[target] = arrived
    size = element_count(x)
    with B.pause():
        run_plan(data, [make_round(source, target, 0, size, add=False)], group)
    return arrived
