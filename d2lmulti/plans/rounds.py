"""A plan is a sequence of rounds; a round is one table of transfers.

All transfers of a round read the state *before* the round, and reductions into the
same part happen in ascending order of the source rank. So the same plan gives the same
bits in one process and across processes. A plan depends on no framework and no
operation (sum, max): `add` only means "combine" instead of "overwrite".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, NamedTuple

import numpy as np

from ..checks import MAX_INDEX, MAX_RANKS, check_count


class Transfer(NamedTuple):
    """One row of a round: `length` elements are sent from one rank to another."""

    source: int  #: rank that sends
    target: int  #: rank that receives
    source_first: int  #: first element, at the source
    target_first: int  #: first element, at the target
    length: int  #: in elements
    add: bool  #: combine, or overwrite


@dataclass(frozen=True, eq=False)  # compared by identity: a cache key
class Round:
    """One table of transfers, one NumPy array per column, sorted by source rank."""

    source: np.ndarray  #: ranks that send
    target: np.ndarray  #: ranks that receive
    source_first: np.ndarray  #: first elements, at the source
    target_first: np.ndarray  #: first elements, at the target
    length: np.ndarray  #: in elements
    add: np.ndarray  #: combine, or overwrite

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self.transfers)

    @cached_property
    def transfers(self) -> list[Transfer]:
        """Return the rows as Python integers (cached, as plans are run many times)."""
        rows = zip(*(column.tolist() for column in self.columns), strict=True)
        return list(map(Transfer._make, rows))

    @cached_property
    def slices(self) -> list[tuple[int, slice, int, slice, bool]]:
        """Return the rows as (source, its slice, target, its slice, add)."""
        return [
            (t.source, slice(a := t.source_first, a + t.length), t.target,
             slice(b := t.target_first, b + t.length), t.add)
            for t in self.transfers
        ]  # fmt: skip

    @cached_property
    def read_after_write(self) -> frozenset[int]:
        """Return the rows that read what an earlier row of the same round writes.

        All rows of a round read first; to execute them one by one, copy these slices.
        """
        rows = set()
        written: dict[int, list[tuple[int, int]]] = {}
        for i, t in enumerate(self.transfers):
            first, last = t.source_first, t.source_first + t.length
            if any(a < last and first < b for a, b in written.get(t.source, ())):
                rows.add(i)
            target = (t.target_first, t.target_first + t.length)
            written.setdefault(t.target, []).append(target)
        return frozenset(rows)

    @cached_property
    def min_length(self) -> int:
        """Return the length of the shortest vector that holds every slice.

        A slice below 0 is in no vector.
        """
        below = any(min(a.start, b.start) < 0 for _, a, _, b, _ in self.slices)
        ends = (max(a.stop, b.stop) for _, a, _, b, _ in self.slices)
        return MAX_INDEX if below else max(ends, default=0)

    @property
    def columns(self) -> tuple[np.ndarray, ...]:
        """Return the columns, in the order of `Transfer`."""
        return tuple(vars(self)[name] for name in Transfer._fields)


Plan = Callable[..., Iterator[Round]]  # of (ranks, length), sometimes with more
MAX_ELEMENTS = 2**40  # of a vector: the bytes of all ranks fit in 64 bits


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
    # Full columns are not copied, which would be slow in a round of thousands.
    columns = [c if c.ndim else np.full(rows, c) for c in columns]
    return sort_rows(columns)


def sort_rows(columns: list[np.ndarray]) -> Round:
    """Build a round from columns of equal length: without empty rows, by source."""
    keep = columns[4] > 0
    if not keep.all():
        columns = [c[keep] for c in columns]
    source = columns[0]
    if (source[1:] < source[:-1]).any():
        order = np.argsort(source, kind="stable")
        columns = [c[order] for c in columns]
    return Round(*columns)


def plan(rounds: Plan) -> Plan:
    """Decorate a function of (ranks, length): check both, skip empty rounds."""

    @wraps(rounds)
    def checked(ranks: int, length: int, *more: Any, **named: Any) -> Iterator[Round]:
        ranks = check_count("ranks", ranks, max=MAX_RANKS)
        length = check_count("length", length, min=0, max=MAX_ELEMENTS)
        return (r for r in rounds(ranks, length, *more, **named) if len(r))

    return checked


def even_bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """Cut range(total) into `parts` neighboring (first, last) pairs.

    The first `total % parts` parts are one element longer; parts may be empty.

    >>> even_bounds(10, 4)
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    total = check_count("total", total, min=0)
    parts = check_count("parts", parts, max=MAX_RANKS)
    edges = even_edges(total, parts).tolist()
    return list(zip(edges[:-1], edges[1:], strict=True))


def even_edges(total: int, parts: int) -> np.ndarray:
    """Return the same cut as an array: part i is edges[i] to edges[i + 1].

    >>> even_edges(10, 4).tolist()
    [0, 3, 6, 8, 10]
    """
    size, longer = divmod(int(total), parts)
    i = np.arange(parts + 1, dtype=np.int64)
    return i * size + np.minimum(i, longer)
