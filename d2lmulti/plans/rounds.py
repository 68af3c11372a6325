"""A plan is a sequence of rounds; a round is one table of transfers.

All transfers of a round read the state *before* the round, and reductions into the
same part happen in ascending order of the source rank. So the same plan gives the same
bits in one process and across processes. A plan knows no framework and no operation
(sum, max): `add` only says "combine" instead of "overwrite".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Transfer(NamedTuple):
    """One row of a round: `length` elements go from one rank to another."""

    source: int
    target: int
    source_first: int
    target_first: int
    length: int
    add: bool


@dataclass(frozen=True)
class Round:
    """One table of transfers, one NumPy array a column, sorted by source rank."""

    source: np.ndarray
    target: np.ndarray
    source_first: np.ndarray
    target_first: np.ndarray
    length: np.ndarray
    add: np.ndarray

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Transfer]:
        columns = (
            self.source,
            self.target,
            self.source_first,
            self.target_first,
            self.length,
            self.add,
        )
        return map(Transfer._make, zip(*(c.tolist() for c in columns), strict=True))


def make_round(
    source: object, target: object, first: object, length: object, add: object
) -> Round:
    """Build a round in which every part keeps its place in the vector.

    The arguments are integers or equally long arrays; transfers of length zero are no
    messages and are left out.
    """
    columns = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(c)) for c in (source, target, first, length, add))
    )
    keep = columns[3] > 0
    order = np.argsort(columns[0][keep], kind="stable")
    source_, target_, first_, length_, add_ = (c[keep][order] for c in columns)
    return Round(source_, target_, first_, first_, length_, add_.astype(bool))
