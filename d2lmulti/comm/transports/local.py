"""All ranks in one process: a transfer is a copy from one device to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backends import backend_of
from ...plans.rounds import Round
from . import Combine


class LocalTransport:
    """The transport of simulated devices and of several GPUs in one process."""

    name = "local"

    def exchange(
        self, data: Sequence[Any], round: Round, combine: Combine = "sum"
    ) -> None:
        """Carry out one round in place; `data[i]` is the tensor of rank i."""
        B = backend_of(data[0])
        # Read everything first: a view costs less while its code is still in the cache.
        parts = [
            B.read(data[t.source], t.source_first, t.source_first + t.length)
            for t in round.transfers
        ]
        for i in round.overtaken:  # a view would show what is written before its turn
            parts[i] = B.copy_to(parts[i], B.device_of(parts[i]))
        for t, part in zip(round.transfers, parts, strict=True):
            first, last = t.target_first, t.target_first + t.length
            if t.add and combine == "max":
                B.maximum_(data[t.target], first, last, part)
            else:
                B.write_(data[t.target], first, last, part, add=t.add)
