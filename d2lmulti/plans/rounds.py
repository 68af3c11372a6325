"""A plan is a sequence of rounds; a round is one table of transfers.

All transfers of a round read the state *before* the round, and reductions into the
same part happen in ascending order of the source rank. So the same plan gives the same
bits in one process and across processes. A plan knows no framework and no operation
(sum, max): `add` only says "combine" instead of "overwrite".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ..checks import MOST_RANKS, check_count, check_kind, refusal


class Transfer(NamedTuple):
    """One row of a round: `length` elements go from one rank to another."""

    source: int  #: rank that sends
    target: int  #: rank that receives
    source_first: int  #: first element, there
    target_first: int  #: first element, here
    length: int  #: in elements
    add: bool  #: combine, or overwrite


@dataclass(frozen=True)
class Round:
    """One table of transfers, one NumPy array a column, sorted by source rank."""

    source: np.ndarray  #: ranks that send
    target: np.ndarray  #: ranks that receive
    source_first: np.ndarray  #: first elements, there
    target_first: np.ndarray  #: first elements, here
    length: np.ndarray  #: in elements
    add: np.ndarray  #: combine, or overwrite

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self.transfers)

    @cached_property
    def transfers(self) -> list[Transfer]:
        """The rows as Python integers (kept: a plan may be run many times)."""
        rows = zip(*(column.tolist() for column in self.columns), strict=True)
        return list(map(Transfer._make, rows))

    @cached_property
    def overtaken(self) -> frozenset[int]:
        """Rows that send from a part which an earlier row writes to.

        Carried out one by one, these would send the state *after* that row: whoever
        carries out the round must read their parts first, and keep them.
        """
        found = set()
        written: dict[int, list[tuple[int, int]]] = {}
        for i, t in enumerate(self.transfers):
            first, last = t.source_first, t.source_first + t.length
            if any(a < last and first < b for a, b in written.get(t.source, ())):
                found.add(i)
            into = (t.target_first, t.target_first + t.length)
            written.setdefault(t.target, []).append(into)
        return frozenset(found)

    @cached_property
    def shares(self) -> dict[int, Any]:
        """What each rank has to do, kept by `matching.messages_of`."""
        return {}

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """The columns, in the order of `Transfer`."""
        return (
            self.source,
            self.target,
            self.source_first,
            self.target_first,
            self.length,
            self.add,
        )


Plan = Callable[..., Iterator[Round]]  # of (ranks, length), sometimes with more
MOST_ELEMENTS = 2**40  # of a vector: bytes of all ranks still fit into 64 bits


def make_round(
    source: object,
    target: object,
    first: object,
    length: object,
    add: object,
    target_first: object = None,
) -> Round:
    """Build a round; without `target_first`, parts keep their place in the vector.

    The arguments are integers or equally long arrays; transfers of length zero are no
    messages and are left out.
    """
    given = (source, target, first, first if target_first is None else target_first)
    columns = [np.asarray(c, dtype=np.int64) for c in (*given, length)]
    columns.append(np.asarray(add, dtype=bool))
    rows = max((c.size for c in columns if c.ndim), default=1)
    # Full columns stay the same objects: in a round of thousands every copy counts.
    columns = [c if c.ndim else np.full(rows, c) for c in columns]
    return _sorted(columns)


def _sorted(columns: list[np.ndarray]) -> Round:
    keep = columns[4] > 0
    if not keep.all():
        columns = [c[keep] for c in columns]
    source = columns[0]
    if (source[1:] < source[:-1]).any():
        order = np.argsort(source, kind="stable")
        columns = [c[order] for c in columns]
    return Round(*columns)


def check_rounds(rounds: Iterable[Round]) -> Iterator[Round]:
    """Give the rounds of a plan one by one; refuse what is none."""
    if isinstance(rounds, (str, bytes)) or not isinstance(rounds, Iterable):
        raise refusal("a plan's rounds", rounds, "call a plan, as in ring(4, 100)")
    return (check_kind("a round", r, Round, "a Round") for r in rounds)


def together(plans: Iterable[Iterable[Round]]) -> Iterator[Round]:
    """Run several plans at the same time: round i of the result is round i of each."""
    for rounds in zip_longest(*plans):
        parts = [this_round for this_round in rounds if this_round is not None]
        tables = zip(*(part.columns for part in parts), strict=True)
        yield _sorted([np.concatenate(column) for column in tables])


def plan(rounds: Plan) -> Plan:
    """Make a function of (ranks, length) a plan: check both, leave out empty rounds."""

    @wraps(rounds)
    def checked(ranks: int, length: int, *more: Any, **named: Any) -> Iterator[Round]:
        ranks = check_count("ranks", ranks, most=MOST_RANKS)
        length = check_count("length", length, least=0, most=MOST_ELEMENTS)
        return (r for r in rounds(ranks, length, *more, **named) if len(r))

    return checked
