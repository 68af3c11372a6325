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
        transfers = list(round)
        saved = {}
        written: dict[int, list[tuple[int, int]]] = {}
        for i, t in enumerate(transfers):
            first, last = t.source_first, t.source_first + t.length
            # A part that an earlier row writes to must be saved: it is sent as it was.
            if any(a < last and first < b for a, b in written.get(t.source, ())):
                part = B.read(data[t.source], first, last)
                saved[i] = B.copy_to(part, B.device_of(part))
            into = (t.target_first, t.target_first + t.length)
            written.setdefault(t.target, []).append(into)
        for i, t in enumerate(transfers):
            first, last = t.source_first, t.source_first + t.length
            part = saved[i] if i in saved else B.read(data[t.source], first, last)
            first, last = t.target_first, t.target_first + t.length
            if t.add and combine == "max":
                B.maximum_(data[t.target], first, last, part)
            else:
                B.write_(data[t.target], first, last, part, add=t.add)
