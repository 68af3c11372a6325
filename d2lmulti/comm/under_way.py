"""An exchange that goes on while its ranks compute, on an engine that can do that.

A plan of one round asks for nothing between its messages, so an engine may begin them
and be asked for the end later. Others carry it out at once. Chapter: *sharding*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..backends.protocol import backend_of, itemsize
from ..events import moved
from ..plans.rounds import Round, make_round
from .allreduce import exchange
from .group import Group, Work


@runtime_checkable
class Eager(Protocol):
    """What an engine has besides, if its messages can be under way."""

    def start_round(self, data: Sequence[Any], this_round: Round) -> Work:
        """Begin the messages of a round; what they carry must not change meanwhile."""


def start_exchange(
    data: Sequence[Any], rounds: Sequence[Round], group: Group, call: str = ""
) -> Work:
    """Begin what `exchange` does, if it is one round; otherwise do it.

    Without a `call`, the other processes' is not compared.
    """
    engine = group.engine
    if len(rounds) != 1 or not group.is_distributed or not isinstance(engine, Eager):
        exchange(data, rounds, group, call=call)
        return Work()
    x = data[0]
    B = backend_of(x)
    if call:
        engine.begin(f"{call} of {tuple(x.shape)} {B.dtype_of(x)}")
    (this_round,) = group.numbered(rounds)
    moved(this_round, itemsize(x))
    return engine.start_round(data, this_round)


def at_once(edges: np.ndarray) -> Round:
    """Give part i, edges[i] to edges[i + 1], from rank i to all others, in one round.

    As many messages and bytes as the ring of all-gather, and nothing to wait for.
    """
    n = len(edges) - 1
    source, target = np.nonzero(~np.eye(n, dtype=bool) & (np.diff(edges) > 0)[:, None])
    first, length = edges[:-1][source], np.diff(edges)[source]
    return make_round(source, target, first, length, add=False)
