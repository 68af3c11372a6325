"""All ranks in one process: a transfer is a copy from one device to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...backends import backend_of
from ...plans.rounds import Round, Transfer


class LocalTransport:
    """The transport of simulated devices and of several GPUs in one process."""

    name = "local"

    def exchange(self, data: Sequence[Any], round: Round) -> None:
        """Carry out one round in place; `data[i]` is the tensor of rank i."""
        B = backend_of(data[0])
        transfers = list(round)
        written = [(t.target, t.target_first, t.length) for t in transfers]
        parts = []
        for t in transfers:
            part = B.read(data[t.source], t.source_first, t.source_first + t.length)
            if _is_written(t, written):  # later writes must not change what is sent
                part = B.copy_to(part, B.device_of(part))
            parts.append(part)
        for t, part in zip(transfers, parts, strict=True):
            last = t.target_first + t.length
            B.write_(data[t.target], t.target_first, last, part, add=t.add)


def _is_written(t: Transfer, written: Sequence[tuple[int, int, int]]) -> bool:
    first, last = t.source_first, t.source_first + t.length
    return any(
        rank == t.source and start < last and first < start + length
        for rank, start, length in written
    )
