"""Order a round's messages in turns, so that engines with blocking sends do not hang.

If every rank of a ring sent first, all would wait for receivers that are busy sending.
In a *turn* each rank has at most one message, sent or received: a matching. All ranks
take the turns in order, so both ends of the first unfinished message are always waiting
for it. Chapter: *many_machines*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from ..errors import PlanError
from .rounds import Round


class Message(NamedTuple):
    """One rank's end of a transfer: elements first..last-1 to or from a peer."""

    row: int  # of the round: the same number at both ends
    peer: int
    first: int
    last: int
    add: bool
    turn: int
    # A sent part that this rank overwrites in the same round (copy it before), or a
    # received part that another message writes to as well (keep to the rows' order).
    clashes: bool


@dataclass(frozen=True)
class RankMessages:
    """The messages of one rank in a round, each list in row order."""

    sends: list[Message]
    receives: list[Message]

    @cached_property
    def peers(self) -> tuple[int, ...]:
        return tuple(sorted({m.peer for m in (*self.sends, *self.receives)}))


def order_messages(pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Assign each (source, target) the first turn in which both are free.

    >>> order_messages([(0, 1), (1, 2), (2, 3), (3, 0)])  # even ranks send first
    [0, 1, 0, 1]
    >>> order_messages([(1, 0), (2, 0), (3, 0)])  # a star: one after the other
    [0, 1, 2]
    """
    busy: dict[int, set[int]] = defaultdict(set)
    turns = []
    for source, target in pairs:
        turn = 0
        while turn in busy[source] or turn in busy[target]:
            turn += 1
        busy[source].add(turn)
        busy[target].add(turn)
        turns.append(turn)
    return turns


@lru_cache(maxsize=1024)  # a training step repeats the same few rounds
def messages_of(this_round: Round, rank: int) -> RankMessages:
    """Return the messages that `rank` sends and receives, with their turns.

    Raises `PlanError` for a message of a rank to itself, which no engine can send.
    """
    turns = order_messages((t.source, t.target) for t in this_round.transfers)
    rows = enumerate(this_round.transfers)
    own_rows = [(row, t) for row, t in rows if rank in (t.source, t.target)]
    written = {
        row: (t.target_first, t.target_first + t.length)
        for row, t in own_rows
        if t.target == rank
    }
    sends: list[Message] = []
    receives: list[Message] = []
    for row, t in own_rows:
        if t.source == t.target:
            raise PlanError(
                f"expected messages between two ranks, got one from rank {rank} to "
                "itself; leave it out of the plan, or run the plan in one process"
            )
        part, peer, messages = written.get(row), t.source, receives
        if part is None:
            part = t.source_first, t.source_first + t.length
            peer, messages = t.target, sends
        clashes = any(
            part[0] < last and first < part[1]
            for other, (first, last) in written.items()
            if other != row
        )
        messages.append(Message(row, peer, *part, t.add, turns[row], clashes))
    return RankMessages(sends, receives)
