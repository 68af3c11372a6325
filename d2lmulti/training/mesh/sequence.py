"""Ring attention between two pieces of a recorded graph: the function of an `Apply`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backends import backend_of
from ...backends.protocol import Tensor
from ...comm.group import Group
from ...parallel.sequence import ring_attention


def attend_by_ring(positions: Sequence[np.ndarray]) -> Callable[..., Any]:
    """Make a function that attends to the tokens of all ranks along `sequence`.

    It takes queries, keys and values, (3 * heads, tokens, size) on each rank, where the
    heads are those of all examples, and gives what they attend to, (heads, tokens,
    size), and the way back. `positions` are those of each rank's tokens.
    """

    def attend(xs: Sequence[Tensor], group: Group) -> tuple[list[Tensor], Any]:
        heads = xs[0].shape[0] // 3
        queries, keys, values = (
            [_turn(x[i * heads : (i + 1) * heads]) for x in xs] for i in range(3)
        )
        attended = ring_attention(queries, keys, values, positions, group=group)

        def back(grads: Sequence[Tensor]) -> list[Tensor]:
            found = attended.backward([_turn(grad) for grad in grads])
            B = backend_of(grads[0])
            return [
                B.concat([_turn(d) for d in each]) for each in zip(*found, strict=True)
            ]

        return [_turn(x) for x in attended.outputs], back

    return attend


def _turn(x: Tensor) -> Tensor:
    """Swap heads and tokens, in new storage."""
    B = backend_of(x)
    return B.copy_to(B.transpose(x, (1, 0, 2)), B.device_of(x))
