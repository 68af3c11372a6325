"""One tensor from one rank to another: a round with a single transfer.

In one process it is a copy from device to device. Between processes one sends and the
other receives; the first message tells the form of the second, which is the tensor.
"""

from __future__ import annotations

import numpy as np

from ..backends import DTYPES, backend_of, element_count
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..errors import InvalidInput
from ..events import unobserved
from ..plans.rounds import make_round
from .allreduce import exchange
from .group import Group

_DIMS = 8  # the most that a form can tell


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
        exchange(data, [make_round(source, target, 0, size, add=False)], group)
    return arrived


def send(x: Tensor, source: int, target: int, group: Group) -> None:
    """Send `x` of the local rank `source` to `target` in another process; counted.

    Waits until `x` may be changed again. Raises `InvalidInput` for more than 8
    dimensions.
    """
    B = backend_of(x)
    if len(x.shape) > _DIMS:
        raise InvalidInput(
            f"expected at most {_DIMS} dimensions, got {len(x.shape)}; reshape it"
        )
    form = np.full(_DIMS + 1, -1)
    form[: len(x.shape)] = x.shape
    form[_DIMS] = DTYPES.index(B.dtype_of(x))
    with B.pause():
        x = B.copy_to(x, B.device_of(x))  # row by row, outside any graph
        with unobserved():
            _pass(B.array(form, B.device_of(x)), source, target, group)
        _pass(x, source, target, group)


def receive(
    B: Backend, source: int, target: int, device: AnyDevice, group: Group
) -> Tensor:
    """Take what `source` sends to the local rank `target`, as a new tensor; counted."""
    with B.pause():
        form = B.array(np.zeros(_DIMS + 1, np.int64), device)
        with unobserved():
            _pass(form, source, target, group)
        *shape, dtype = B.numpy(form).tolist()
        shape = [extent for extent in shape if extent >= 0]
        x = B.zeros(shape, DTYPES[dtype], device)
        _pass(x, source, target, group)
    return x


def _pass(x: Tensor, source: int, target: int, group: Group) -> None:
    this_round = make_round(source, target, 0, element_count(x), add=False)
    if len(this_round):
        exchange([x], [this_round], group)
