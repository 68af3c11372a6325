"""All ranks in one process: a transfer is a copy from one device to another.

Where NumPy reaches the memory of all devices, it does the work itself: on one thread,
frameworks take up to a third longer to add or copy the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...backends import backend_of, checks
from ...backends.dtypes import DTYPES
from ...backends.memory import COMBINE
from ...backends.sizes import element_count
from ...plans.rounds import Round, make_round
from . import Combine, check_native


class LocalTransport:
    """The engine of simulated devices and of several GPUs in one process."""

    name = "local"
    point_to_point = True
    native = frozenset({"allreduce"})
    reducible: Collection[str] = DTYPES

    def begin(self, call: str) -> None:
        """Do nothing: in one process nobody waits."""

    def exchange(
        self, data: Sequence[Any], this_round: Round, combine: Combine = "sum"
    ) -> None:
        """Carry out one round in place; `data[i]` is the tensor of rank i."""
        B = backend_of(data[0])
        memories = [B.memory(x) for x in data]
        if all(memory is not None for memory in memories):
            _exchange_memory(memories, this_round, combine)
            return
        # Read everything first: a view costs less while its code is still in the cache.
        parts = [
            B.read(data[t.source], t.source_first, t.source_first + t.length)
            for t in this_round.transfers
        ]
        for (
            i
        ) in this_round.overtaken:  # a view would show what is written before its turn
            parts[i] = B.copy_to(parts[i], B.device_of(parts[i]))
        for t, part in zip(this_round.transfers, parts, strict=True):
            first, last = t.target_first, t.target_first + t.length
            if t.add and combine == "max":
                B.maximum_(data[t.target], first, last, part)
            else:
                B.write_(data[t.target], first, last, part, add=t.add)

    def run_native(
        self, what: str, data: Sequence[Any], op: Combine = "sum", root: int = 0
    ) -> None:
        """Sum (or take the maximum) on a root, the plain way, and copy it to all."""
        check_native(self.name, self.native, what)
        size = element_count(data[0])
        others = [rank for rank in range(len(data)) if rank != root]
        self.exchange(data, make_round(others, root, 0, size, add=True), op)
        self.exchange(data, make_round(root, others, 0, size, add=False))

    def allgather_text(self, text: str) -> list[str]:
        """Give back the text: one process speaks for all its ranks."""
        return [text]

    def close(self) -> None:
        """Do nothing."""


def _exchange_memory(
    memories: Sequence[Any], this_round: Round, combine: Combine
) -> None:
    merge = COMBINE[combine]
    sources = [_part(memories[t.source], t.source_first, t.length) for t in this_round]
    for i in this_round.overtaken:
        sources[i] = sources[i].copy()
    for t, source in zip(this_round.transfers, sources, strict=True):
        part = _part(memories[t.target], t.target_first, t.length)
        if t.add:
            merge(part, source, out=part)
        else:
            np.copyto(part, source)


def _part(memory: np.ndarray, first: int, length: int) -> np.ndarray:
    checks.part(memory, first, first + length)
    return memory[first : first + length]
