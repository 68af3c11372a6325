"""What a model may ask of the other devices in the middle of its forward pass.

A model that talks is a generator: it yields a call and gets back the answer. The driver
(`parallel.lockstep`) advances all devices together and carries out the call.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Sum(NamedTuple):
    """Sum `tensor` over all devices; backward, sum the gradients of the answer.

    Every other tensor that is used after the call must be in `keep`: the recorded graph
    is cut here. `total, kept1, kept2 = yield Sum(x, keep=(y, z))`.
    """

    tensor: Any
    keep: tuple[Any, ...] = ()
