"""Watching an engine that waits out of our sight: errors that say who did what.

Inside an engine's own wait nobody can look at the status table. So each rank looks when
it begins a call: of two ranks whose calls differ, the later one sees it. And when the
engine fails or gives up, its error comes with what all ranks were doing. Not so with
NCCL: its wait only orders work on the GPU. A rank that is missing shows up when a
result is read, or NCCL's own watchdog aborts the process after `D2LMULTI_TIMEOUT`.
Chapter: *many_machines*.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from ..backends import backend_of, checks
from ..comm.agreement import name_ranks
from ..comm.group import Combine
from ..errors import PeerError
from ..plans.message_order import RankMessages, messages_of
from ..plans.rounds import Round
from .process_info import ProcessInfo, time_limit
from .status_table import FAILED, StatusTable

T = TypeVar("T")  # an engine
Parts = Sequence[Sequence[int]]


class CollectiveMonitor:
    """This rank's view of the others; without one, only of the engine's errors."""

    def __init__(self, info: ProcessInfo) -> None:
        self.table = StatusTable.mine()
        self.timeout = time_limit()
        self.rank, self.group = info.rank, ""
        self.ranks: Sequence[int] = range(info.size)
        self._call = "before its first call"

    def begin(self, call: str) -> None:
        """Note the next call; raise `PeerError` where another rank makes another."""
        self._call = call
        if self.table is None:
            return
        self.table.begin(call, self.group)
        mine = self.table.read(self.rank)
        for rank in self.ranks:
            row = self.table.read(rank)
            same = row.group == mine.group  # calls of another group tell nothing
            other = same and row.number == mine.number and row.call != mine.call
            # One that has finished may have done its part of this call before.
            left = same and row.ended and row.number < mine.number
            if row.state == FAILED or left or other:
                raise PeerError(
                    f"expected every rank to make the same calls, but rank {self.rank} "
                    f"is {mine.in_words()}, and rank {rank} is "
                    f"{row.in_words()}"
                )

    @contextmanager
    def waiting(self, *ranks: int) -> Iterator[None]:
        """Note for whom this rank waits; turn the engine's error into ours."""
        if self.table:
            self.table.wait_for(*ranks)
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            doing = f"\n{self.table.in_words()}" if self.table else ""
            whom = name_ranks(list(ranks)) if ranks else "all ranks"
            raise PeerError(
                f"rank {self.rank} expected an answer from {whom} in {self._call}, but "
                f"its engine gave up: {error}; look for the rank that stopped first"
                f"{doing}"
            ) from error
        if self.table:
            self.table.wait_for()


class MonitoredEngine:
    """What the frameworks' engines share: a rank, and a monitor that watches it."""

    def __init__(self, info: ProcessInfo) -> None:
        self.rank, self.size = info.rank, info.size
        self.ranks: Sequence[int] = range(info.size)  # of this group, in the whole
        self._group: Any = None  # the framework's own, of a sub-group
        self._monitor = CollectiveMonitor(info)

    def begin(self, call: str) -> None:
        """Note that this rank makes its next call."""
        self._monitor.begin(call)

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's share of the rounds, in place."""
        x = data[0].detach()
        B = backend_of(x)
        checks.contiguous(x.is_contiguous())
        for this_round in rounds:
            share = messages_of(this_round, self.rank)
            if share.peers:
                with self._monitor.waiting(*share.peers), B.pause():
                    self._carry(x, share, combine)

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order."""
        # As bytes: `all_gather_object` would unpickle, and so run, what others send.
        self.begin("allgather_text")
        mine = np.frombuffer(text.encode(), np.uint8)
        sizes = [int(size[0]) for size in self._gather(np.array([len(mine)]))]
        padded = np.zeros(max(1, *sizes), np.uint8)
        padded[: len(mine)] = mine
        texts = zip(self._gather(padded), sizes, strict=True)
        return [found[:size].tobytes().decode() for found, size in texts]

    def _carry(self, x: Any, share: RankMessages, combine: Combine) -> None:
        """Send and receive this rank's messages of one round of the contiguous `x`."""
        raise NotImplementedError

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Give everyone's values, of one shape and dtype."""
        raise NotImplementedError


def of_some(engine: T, ranks: Sequence[int], name: str, group: Any) -> T:
    """Copy an engine as that of a sub-group, in which the others' calls do not matter.

    `group` is what the framework itself has made for these ranks.
    """
    mine: Any = copy.copy(engine)
    mine.ranks, mine._group, mine._monitor = ranks, group, copy.copy(mine._monitor)
    mine._monitor.ranks, mine._monitor.group = ranks, name
    return mine
