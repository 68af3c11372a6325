"""What the engines of processes share: one rank that watches what the others do.

Inside an engine's own wait nobody can read the status table. So each rank reads it when
it begins a call: of two ranks whose calls differ, the later one notices. When an engine
fails or gives up, its error comes with what all ranks were doing. NCCL's wait only
orders work on the GPU: there a missing rank shows up when a result is read, or NCCL's
own watchdog aborts the process after `D2LMULTI_TIMEOUT`. Chapter: *many_machines*.
"""

from __future__ import annotations

import copy
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from ..backends import backend_of
from ..checks import check_contiguous
from ..comm.group import Combine
from ..errors import PeerError, name_ranks
from ..plans.message_order import RankMessages, messages_of
from ..plans.rounds import Round
from .process_info import ProcessInfo, time_limit
from .status_table import FAILED, RankStatus, StatusTable

Parts = Sequence[Sequence[int]]


class ProcessEngine:
    """The engine of one rank; the subclasses carry the bytes."""

    def __init__(self, info: ProcessInfo) -> None:
        self.rank, self.size = info.rank, info.size
        self.ranks: Sequence[int] = range(info.size)  # of this group, in the whole
        self.timeout = time_limit()
        self._group: Any = None  # the framework's own, of a sub-group
        self._label, self._call = "", "before its first call"
        self._table = StatusTable.mine()

    def begin(self, call: str) -> None:
        """Note the next call; raise `PeerError` where another rank makes another."""
        self._call = call
        if self._table:
            self._table.begin(call, self._label)
            if self._differing(self._table) is not None:
                raise self._different_calls(self._table)

    def exchange(
        self, data: Sequence[Any], rounds: Iterable[Round], combine: Combine = "sum"
    ) -> None:
        """Carry out this rank's messages of the rounds, in place."""
        x = data[0].detach()
        B = backend_of(x)
        check_contiguous(x.is_contiguous())
        for this_round in rounds:
            messages = messages_of(this_round, self.rank)
            if messages.peers:
                with self._waiting(*messages.peers), B.pause():
                    self._carry(x, messages, combine)

    def allgather_text(self, text: str) -> list[str]:
        """Give every rank's short text to every rank, in rank order."""
        # As bytes: `all_gather_object` would unpickle, and so run, what others send.
        self.begin("allgather_text")
        own = np.frombuffer(text.encode(), np.uint8)
        sizes = [int(size[0]) for size in self._gather(np.array([len(own)]))]
        padded = np.zeros(max(1, *sizes), np.uint8)
        padded[: len(own)] = own
        gathered = zip(self._gather(padded), sizes, strict=True)
        return [values[:size].tobytes().decode() for values, size in gathered]

    def _carry(self, x: Any, messages: RankMessages, combine: Combine) -> None:
        """Send and receive this rank's messages of one round of the contiguous `x`."""
        raise NotImplementedError

    def _gather(self, values: np.ndarray) -> list[np.ndarray]:
        """Return the values of every rank, which have one shape and dtype."""
        raise NotImplementedError

    def _of_some(self, ranks: Sequence[int], label: str, group: Any = None) -> Self:
        """Copy this engine as that of a sub-group, whose calls count separately.

        `group` is what the framework itself has made for these ranks.
        """
        engine = copy.copy(self)
        engine.ranks, engine._label, engine._group = ranks, label, group
        return engine

    @contextmanager
    def _waiting(self, *ranks: int) -> Iterator[None]:
        """Note for whom this rank waits; turn the engine's error into `PeerError`."""
        if self._table:
            self._table.wait_for(*ranks)
        try:
            yield
        except (RuntimeError, ValueError, OSError) as error:
            whom = name_ranks(list(ranks)) if ranks else "all ranks"
            table = f"\n{self._table.in_words()}" if self._table else ""
            raise PeerError(
                f"rank {self.rank} expected an answer from {whom} in {self._call}, but "
                f"its engine gave up: {error}; look for the rank that stopped first"
                f"{table}"
            ) from error
        if self._table:
            self._table.wait_for()

    def _differing(self, table: StatusTable) -> int | None:
        """Find a rank that has failed, or that will not make this rank's call."""
        own = table.read(self.rank)
        others = (rank for rank in self.ranks if _differs(table.read(rank), own))
        return next(others, None)

    def _different_calls(self, table: StatusTable) -> PeerError:
        return PeerError(
            "expected every rank to make the same calls, with the same shapes; rank "
            f"{self.rank} found that they do not. Who does what:\n{table.in_words()}"
        )


def _differs(row: RankStatus, own: RankStatus) -> bool:
    if row.group != own.group:  # calls of another group tell nothing
        return row.state == FAILED
    if row.ended:  # one that has finished may have done its part before
        return row.state == FAILED or row.number < own.number
    return row.number == own.number and row.call != own.call


def wait_for_server(address: str, port: int) -> str:
    """Wait until rank 0 listens; return the address it is reached from.

    Frameworks themselves try a few times, or every three seconds. Raises `PeerError`
    after the time limit.
    """
    end = time.monotonic() + time_limit()
    while True:
        try:
            with socket.create_connection((address, port), timeout=1) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            if time.monotonic() > end:
                raise PeerError(
                    f"expected rank 0 to listen on {address}:{port}, got: {error}; "
                    "look at its output, or at a firewall between the machines"
                ) from error
            time.sleep(0.02)
